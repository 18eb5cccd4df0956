"""Metadata and dependencies of specjax."""

import pathlib

import setuptools

_EXTRAS = {
    # Comparison with the reference implementation, and its pickled weights.
    "parity": [
        "torch>=2.4",
        "transformers>=4.56",
        "accelerate>=1.0",
    ],
    # Checkpoints and texts by their Hugging Face names.
    "hub": [
        "datasets>=3.0",
        "huggingface_hub>=0.34",
    ],
    # Files of llama.cpp.
    "gguf": [
        "gguf>=0.17",
    ],
    # XLA's compiler for TPUs, which needs none; where there is one, JAX for it.
    "tpu": [
        "jax[tpu]>=0.10",
    ],
    # Pictures.
    "plot": [
        "matplotlib>=3.9",
    ],
}
# Training draws its curves.
_EXTRAS["train"] = _EXTRAS["plot"]
_EXTRAS["test"] = [
    *_EXTRAS["gguf"],
    *_EXTRAS["hub"],
    *_EXTRAS["train"],
    "hypothesis>=6.100",
    # Notebooks, run from top to bottom.
    "ipykernel>=6.29",
    "nbclient>=0.10",
    "jsonschema>=4.23",
    # Models of JobSet and of Kubernetes, by their own descriptions.
    "kubeflow-trainer-api>=2.3",
    "pytest>=8.2",
    # A process a core: compiling is most of the time.
    "pytest-xdist>=3.6",
    "pyyaml>=6.0",
    # Which jax brings along, too.
    "scipy>=1.14",
]
_EXTRAS["dev"] = [*_EXTRAS["test"], "build>=1.2", "ruff>=0.6"]

setuptools.setup(
    name="specjax",
    version="0.1.0",
    description="Speculative decoding in JAX and Flax",
    long_description=pathlib.Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=setuptools.find_packages(include=["specjax", "specjax.*"]),
    include_package_data=True,
    package_data={"specjax": ["assets/**/*", "measure/page/*.css"]},
    install_requires=[
        "absl-py>=2.1",
        "filelock>=3.13",
        "flax>=0.12",
        "grain>=0.2.10",
        "jax>=0.10",
        # Before that templates can leave their sandbox.
        "jinja2>=3.1.6",
        "ml_collections>=1.0",
        "numpy>=1.26",
        "optax>=0.2.5",
        "orbax-checkpoint>=0.11",
        "rouge-score>=0.1.2",
        "sacrebleu>=2.4",
        "safetensors>=0.5",
        "sentencepiece>=0.2.0",
        "tokenizers>=0.20",
        "tqdm>=4.66",
    ],
    extras_require=_EXTRAS,
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
