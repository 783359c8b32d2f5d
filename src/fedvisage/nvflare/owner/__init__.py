"""The decisions of a site's owner: rules, approvals, and the site's own record (decision 49)."""
