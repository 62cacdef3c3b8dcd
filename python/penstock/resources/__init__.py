"""Resources of the management API. The name of a module determines its path under /v1 (`penstock.resource_paths`). Every
module in this package is served, without registration.
"""
