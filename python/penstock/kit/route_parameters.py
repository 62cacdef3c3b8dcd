"""Path and query parameters that many routes share. They are not in `shared_fields` and `numbered_pages`, because the
start of the gateway imports those modules and must not load the web framework.
"""

from __future__ import annotations

from typing import Annotated, Literal

from litestar.di import NamedDependency  # noqa: TC002 - the framework reads the annotations at runtime
from litestar.params import PathParameter, QueryParameter

from penstock.kit.numbered_pages import DEFAULT_SIZE, FURTHEST, LARGEST_SIZE, PageRequest
from penstock.kit.tenant_session import RequestContext  # noqa: TC001 - as above

EmailFilter = Annotated[str | None, QueryParameter(description="only the one with this e-mail address")]
IdOrSlug = Annotated[str, PathParameter(description="id or slug")]
WorkspaceFilter = Annotated[str | None, QueryParameter(description="id or slug of the workspace")]
SearchFilter = Annotated[
    str | None,
    QueryParameter(max_length=255, description="part of the name or slug, ignoring the case of ASCII letters"),
]
TagsFilter = Annotated[
    str | None, QueryParameter(description="only rows with these tags: `key:value`, separated by commas")
]
PolicyId = Annotated[str, PathParameter(description="id of the policy")]
PolicyStatusFilter = Annotated[
    Literal["active", "archived"], QueryParameter(description="only policies with this status; default: active")
]
PageSize = Annotated[int | None, QueryParameter(ge=1, le=LARGEST_SIZE, description="rows on a page; default 100")]
PageNumber = Annotated[int | None, QueryParameter(ge=0, le=FURTHEST, description="page number, from 0")]
CamelPageSize = Annotated[
    int | None, QueryParameter(name="pageSize", ge=1, le=LARGEST_SIZE, description="the same as page_size")
]
CamelPageNumber = Annotated[
    int | None, QueryParameter(name="currentPage", ge=0, le=FURTHEST, description="the same as current_page")
]
SortField = Annotated[
    Literal["created_at", "last_updated_at", "name"], QueryParameter(description="what the list is ordered by")
]
SortOrder = Annotated[Literal["asc", "desc"], QueryParameter(description="direction; default: newest first")]


def read_page_request(  # noqa: PLR0913, PLR0917 - one parameter for each query parameter
    context: NamedDependency[RequestContext],  # noqa: ARG001 - resolved first, because the framework needs far longer for two at once
    page_size: PageSize = None,
    current_page: PageNumber = None,
    camel_size: CamelPageSize = None,
    camel_number: CamelPageNumber = None,
    sort: SortField = "created_at",
    order: SortOrder = "desc",
) -> PageRequest:
    """Reads the query parameters that every list accepts."""
    requested_size = camel_size if page_size is None else page_size
    size = DEFAULT_SIZE if requested_size is None else requested_size
    return PageRequest(size, current_page or camel_number or 0, sort, order, requested_size is not None)
