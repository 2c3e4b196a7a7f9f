"""What was deployed on EC2 is kept by AWS Secrets Manager, which moto imitates."""

import pytest

from cli.deploy.record import Applied, AwsRecord
from cli.deploy.serve_api import DeployError
from tests.aws import CREDENTIALS, moto_server


@pytest.mark.whole
def test_aws_keeps_the_record_and_one_deployment_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with moto_server() as url:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        record, other = (AwsRecord("team-us", "us-east-1") for _ in range(2))
        assert record.read() == Applied()
        first = Applied(cluster="a", files={f"file{number}": f"{number}" * 9_000 for number in range(20)})
        with record.lock():
            for applied in (first, Applied(cluster="b", content={"name": "team"}), first):
                record.write(applied)
                assert other.read() == applied
            with pytest.raises(DeployError, match=r"another deployment of the cell runs, by process .* delete-secret"):
                other.lock().__enter__()
        with other.lock():
            pass
