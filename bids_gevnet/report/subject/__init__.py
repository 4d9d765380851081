"""The report of one participant, sub-X.html: `page` builds it from `sections` and `correction`."""
