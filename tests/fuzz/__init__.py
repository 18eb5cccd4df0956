"""Damaged and hostile files for everything that reads files.

    python -m tests.fuzz --cases 20000 --seed 0

Each case takes small good files, damages one of them and has it read as a door
would. Right is: read, or refused in one line. All else is a fault.
"""
