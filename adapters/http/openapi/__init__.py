"""The description of the HTTP interface: an OpenAPI 3.1 document, and a page of it for readers.

`operations` has one entry for each method of each path; a test holds it against the table of routes. The schemas of
subscriptions follow from the types of `gateway.port.push`.

Imported by: http.handlers.
Imports: gateway.port.
"""

from adapters.http.openapi.document import DOCUMENT_PATH, PAGE_PATH, document, page

__all__ = ["DOCUMENT_PATH", "PAGE_PATH", "document", "page"]
