"""Storage of file contents: a folder, or a bucket, which may use the access settings of the bucket for log bodies."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from penstock.blobs.folder import BlobFolder
from penstock.blobs.s3 import S3Bucket
from penstock.blobs.store import BlobStore, open_blob_store, open_body_bucket
from penstock.settings import Settings, load_settings

SHARED = {
    "PENSTOCK_LOG_STORE_BODIES": "s3://bodies/of",
    "PENSTOCK_LOG_STORE_S3_ENDPOINT_URL": "http://minio:9000",
    "PENSTOCK_LOG_STORE_S3_REGION": "eu-west-1",
    "PENSTOCK_LOG_STORE_S3_ACCESS_KEY_ID": "shared-id",
    "PENSTOCK_LOG_STORE_S3_SECRET_ACCESS_KEY": "shared-secret",
    "LOG_STORE_CONNECTION_TIMEOUT_MS": "60000",
}
OWN = {
    "PENSTOCK_FILES_S3_ENDPOINT_URL": "http://other:9000",
    "PENSTOCK_FILES_S3_REGION": "eu-west-2",
    "PENSTOCK_FILES_S3_ACCESS_KEY_ID": "own-id",
    "PENSTOCK_FILES_S3_SECRET_ACCESS_KEY": "own-secret",
}


def options_of(store: BlobStore | None) -> Any:
    assert isinstance(store, S3Bucket)
    return store.options


def test_folder_is_the_default():
    assert isinstance(open_blob_store(Settings()), BlobFolder)
    assert open_body_bucket(Settings()) is None


@pytest.mark.parametrize(
    ("environment", "access"),
    [
        ({}, ("", "", "", "")),
        (SHARED, ("http://minio:9000", "eu-west-1", "shared-id", "shared-secret")),
        (SHARED | OWN, ("http://other:9000", "eu-west-2", "own-id", "own-secret")),
    ],
)
def test_bucket_is_reached_like_that_of_bodies_unless_set(environment: dict[str, str], access: tuple[str, ...]):
    settings = load_settings(None, {"PENSTOCK_FILES_STORE": "s3://files/a/b", **environment})
    options = options_of(open_blob_store(settings))
    assert (options.bucket, options.prefix, options.setting) == ("files", "a/b", "files.store")
    assert (options.endpoint_url, options.region, options.access_key_id, options.secret_access_key) == access
    # Maximum time that the edge waits for a response.
    assert options.timeout_seconds == 15
    if environment:
        bodies = options_of(open_body_bucket(settings))
        assert (bodies.bucket, bodies.access_key_id, bodies.timeout_seconds) == ("bodies", "shared-id", 60)
        assert (bodies.attempts, bodies.setting) == (1, "log_store.bodies")


def test_client_of_buckets_is_loaded_only_for_a_bucket():
    program = (
        "import sys\n"
        "from penstock.app import create_documented_app\n"
        "import penstock.logs.worker\n"
        "create_documented_app()\n"
        "print([name for name in sys.modules if name.startswith(('aiobotocore', 'botocore'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
