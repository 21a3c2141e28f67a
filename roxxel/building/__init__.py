"""Parts of the data set builders: reading documents, splits, the cache."""
