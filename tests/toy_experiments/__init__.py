"""A user's own package of experiments, as far as the tests need one."""
