"""As whom the machine that this runs on is known to its cloud."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.secret import Secret


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """As whom this machine is known to its cloud; the names of AWS's own SDKs are read too."""

    lend: Annotated[
        bool,
        Meta(
            description="let stored providers call as this machine (`aws_auth_type` `serviceRole`, or `assumedRole` "
            "without keys): whoever may store a provider may then use what the machine may"
        ),
    ] = False
    aws_role_arn: Annotated[
        str, Meta(description="role that a web identity is given", extra={"env": "AWS_ROLE_ARN"})
    ] = ""
    aws_web_identity_token_file: Annotated[
        str, Meta(description="file with the token of a web identity", extra={"env": "AWS_WEB_IDENTITY_TOKEN_FILE"})
    ] = ""
    aws_container_url: Annotated[
        str,
        Meta(
            description="where a container is given keys: `http://` and an address of this machine's or of AWS's",
            extra={"env": "AWS_CONTAINER_CREDENTIALS_FULL_URI"},
        ),
    ] = ""
    aws_container_path: Annotated[
        str, Meta(description="the same on ECS: a path", extra={"env": "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"})
    ] = ""
    aws_container_token: Annotated[
        Secret | None,
        Meta(description="what a container says for it", extra={"env": "AWS_CONTAINER_AUTHORIZATION_TOKEN"}),
    ] = None
    aws_container_token_file: Annotated[
        str,
        Meta(
            description="file with what a container says for it",
            extra={"env": "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"},
        ),
    ] = ""
    aws_metadata_url: Annotated[
        str,
        Meta(
            description="where an instance is given keys (IMDSv2)", extra={"env": "AWS_EC2_METADATA_SERVICE_ENDPOINT"}
        ),
    ] = "http://169.254.169.254"
