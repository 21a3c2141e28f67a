"""Steps compiled for TPUs that are not here, and what the programs say of them."""
