"""Parts of `benchmarks/data.py`: what is compared, and how it takes turns."""
