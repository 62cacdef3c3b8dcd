"""As whom the machine that this runs on is known to its cloud."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.settings.secret import Secret


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """As whom this machine is known to its cloud; the names of AWS's and Azure's own SDKs are read too."""

    lend: Annotated[
        bool,
        Meta(
            description="let stored providers call as this machine (`aws_auth_type` `serviceRole`, or `assumedRole` "
            "without keys; `azure_auth_mode` `managed`, `workload` or `entraFederated`; a `vertex_service_account_json` that names a file), and secret references be fetched as "
            "it (these, `default` and `vault_auth_type` `kubernetes`): whoever may store one may then use what the machine may"
        ),
    ] = False
    aws_role_arn: Annotated[
        str, Meta(description="role that a web identity is given", extra={"env": "AWS_ROLE_ARN"})
    ] = ""
    aws_sts_endpoint: Annotated[
        str,
        Meta(
            description="who gives that role, where it is not Amazon's service in the region; the token of a web identity "
            "goes nowhere else, whatever a provider says",
            extra={"env": "AWS_ENDPOINT_URL_STS"},
        ),
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
    azure_identity_url: Annotated[
        str,
        Meta(
            description="where an app or a container of Azure's is given tokens: `http://` and an address of this "
            "machine's or its link's; where none is set, the metadata of a virtual machine is asked",
            extra={"env": "IDENTITY_ENDPOINT"},
        ),
    ] = ""
    azure_identity_header: Annotated[
        Secret | None, Meta(description="what it says for that", extra={"env": "IDENTITY_HEADER"})
    ] = None
    azure_metadata_url: Annotated[
        str,
        Meta(
            description="where a virtual machine of Azure's is given tokens (IMDS)",
            extra={"env": "AZURE_POD_IDENTITY_AUTHORITY_HOST"},
        ),
    ] = "http://169.254.169.254"
    azure_federated_token_file: Annotated[
        str,
        Meta(
            description="file with the token of a workload identity, which vouches for an application of Entra ID",
            extra={"env": "AZURE_FEDERATED_TOKEN_FILE"},
        ),
    ] = ""
    azure_tenant_id: Annotated[
        str,
        Meta(
            description="tenant of a workload identity whose provider names none",
            extra={"env": "AZURE_TENANT_ID"},
        ),
    ] = ""
    azure_client_id: Annotated[
        str,
        Meta(
            description="application of a workload identity whose provider names none",
            extra={"env": "AZURE_CLIENT_ID"},
        ),
    ] = ""
    azure_authority_host: Annotated[
        str,
        Meta(
            description="who gives tokens to applications for which this machine vouches; no provider can name another",
            extra={"env": "AZURE_AUTHORITY_HOST"},
        ),
    ] = "https://login.microsoftonline.com"
    google_token_file: Annotated[
        str,
        Meta(
            description="file with the token that this machine's platform gives it, which vouches for it at Google; files of the "
            "type `external_account` that stored providers have may name this one and no other"
        ),
    ] = ""
    google_sts_url: Annotated[
        str, Meta(description="who takes that token for one of Google's; no provider can name another")
    ] = "https://sts.googleapis.com/v1/token"
    google_iam_url: Annotated[
        str, Meta(description="who gives service accounts' own tokens for that; no provider can name another")
    ] = "https://iamcredentials.googleapis.com"
