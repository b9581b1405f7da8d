"""The league: public traces through the product's own engine, and through the policies that others publish."""
