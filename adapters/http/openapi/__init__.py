"""The description of the HTTP interface: an OpenAPI 3.1 document, and a page of it for readers.

`operations` has one entry for each method of each path; a test holds it against the table of routes. The handlers
import this room; it imports the requests of `gateway.port.push`, whose schemas follow from their types.
"""

from adapters.http.openapi.document import DOCUMENT_PATH, PAGE_PATH, document, page

__all__ = ["DOCUMENT_PATH", "PAGE_PATH", "document", "page"]
