"""The settings section `[identity]`: cloud identity of the machine that the gateway runs on."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.settings.secret import Secret


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Cloud identity of this machine. The environment variables of the AWS and Azure SDKs are read too."""

    allow_provider_use: Annotated[
        bool,
        Meta(
            description="let saved providers and guardrails use this machine's identity (`aws_auth_type` `serviceRole`, or `assumedRole` "
            "without keys; `azure_auth_mode` `managed`, `workload` or `entraFederated`; a `vertex_service_account_json` that names a file; `azureAuthMode` `managed` of a check), and fetch secret references with "
            "it (these, `default` and `vault_auth_type` `kubernetes`): anyone who may store one then has this machine's permissions"
        ),
    ] = False
    aws_role_arn: Annotated[
        str, Meta(description="role to assume with the web identity", extra={"env": "AWS_ROLE_ARN"})
    ] = ""
    aws_sts_endpoint: Annotated[
        str,
        Meta(
            description="STS endpoint that issues the role's credentials; default: Amazon's in the region; the web identity token "
            "is sent only there, whatever a provider's settings say",
            extra={"env": "AWS_ENDPOINT_URL_STS"},
        ),
    ] = ""
    aws_web_identity_token_file: Annotated[
        str, Meta(description="file with the web identity token", extra={"env": "AWS_WEB_IDENTITY_TOKEN_FILE"})
    ] = ""
    aws_container_url: Annotated[
        str,
        Meta(
            description="URL at which a container gets its keys: `http://` and an address of this machine or of AWS",
            extra={"env": "AWS_CONTAINER_CREDENTIALS_FULL_URI"},
        ),
    ] = ""
    aws_container_path: Annotated[
        str, Meta(description="path of that URL on ECS", extra={"env": "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"})
    ] = ""
    aws_container_token: Annotated[
        Secret | None,
        Meta(
            description="authorization token that a container sends to get its keys",
            extra={"env": "AWS_CONTAINER_AUTHORIZATION_TOKEN"},
        ),
    ] = None
    aws_container_token_file: Annotated[
        str,
        Meta(
            description="file with the authorization token that a container sends to get its keys",
            extra={"env": "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"},
        ),
    ] = ""
    aws_metadata_url: Annotated[
        str,
        Meta(
            description="URL of the instance metadata service (IMDSv2), where an instance gets its keys",
            extra={"env": "AWS_EC2_METADATA_SERVICE_ENDPOINT"},
        ),
    ] = "http://169.254.169.254"
    azure_identity_url: Annotated[
        str,
        Meta(
            description="URL at which an Azure app or container gets tokens: `http://` and an address of this "
            "machine or its link; default: the metadata service of the virtual machine",
            extra={"env": "IDENTITY_ENDPOINT"},
        ),
    ] = ""
    azure_identity_header: Annotated[
        Secret | None,
        Meta(description="secret header value to send to the identity endpoint", extra={"env": "IDENTITY_HEADER"}),
    ] = None
    azure_metadata_url: Annotated[
        str,
        Meta(
            description="URL of the instance metadata service (IMDS), where an Azure virtual machine gets tokens",
            extra={"env": "AZURE_POD_IDENTITY_AUTHORITY_HOST"},
        ),
    ] = "http://169.254.169.254"
    azure_federated_token_file: Annotated[
        str,
        Meta(
            description="file with the token of a workload identity, exchanged for a token of an Entra ID application",
            extra={"env": "AZURE_FEDERATED_TOKEN_FILE"},
        ),
    ] = ""
    azure_tenant_id: Annotated[
        str,
        Meta(
            description="tenant of a workload identity if the provider names none",
            extra={"env": "AZURE_TENANT_ID"},
        ),
    ] = ""
    azure_client_id: Annotated[
        str,
        Meta(
            description="application of a workload identity if the provider names none",
            extra={"env": "AZURE_CLIENT_ID"},
        ),
    ] = ""
    azure_authority_host: Annotated[
        str,
        Meta(
            description="authority that issues tokens for this machine's identity; providers cannot name another",
            extra={"env": "AZURE_AUTHORITY_HOST"},
        ),
    ] = "https://login.microsoftonline.com"
    google_token_file: Annotated[
        str,
        Meta(
            description="file with the token that this machine's platform issues, exchanged at Google for an access token; stored providers with a file of the "
            "type `external_account` may name only this token file"
        ),
    ] = ""
    google_sts_url: Annotated[
        str,
        Meta(description="URL that exchanges the platform's token for a Google token; providers cannot name another"),
    ] = "https://sts.googleapis.com/v1/token"
    google_iam_url: Annotated[
        str,
        Meta(
            description="URL that exchanges a Google token for one of a service account; providers cannot name another"
        ),
    ] = "https://iamcredentials.googleapis.com"
