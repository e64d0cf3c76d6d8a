"""Who holds which bytes of a repository: attribution by state and holder, stored after runs."""
