"""A scaling study: which cells there are, what each measured, and the page that shows them."""
