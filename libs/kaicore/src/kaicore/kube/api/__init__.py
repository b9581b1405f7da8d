"""An API server: access, requests, lists and watches."""
