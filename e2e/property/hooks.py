"""What schemathesis needs to know of Kellet: how to sign in, and to count what is answered."""

import atexit
import collections
import json
import os

import requests
import schemathesis

statuses = collections.Counter()


@schemathesis.auth(refresh_interval=5)
class Credential:
    """An API key as it is; a person's token anew every few seconds, since a run also logs out."""

    def get(self, case, context):
        if "KELLET_KEY" in os.environ:
            return os.environ["KELLET_KEY"]
        account = {"email": os.environ["KELLET_EMAIL"], "password": os.environ["KELLET_PASSWORD"]}
        answer = requests.post(os.environ["KELLET_URL"] + "/api/v1/auth/login", json=account, timeout=10)
        answer.raise_for_status()
        return answer.json()["access_token"]

    def set(self, case, data, context):
        case.headers["Authorization"] = f"Bearer {data}"


@schemathesis.hook
def before_call(context, case, kwargs):
    """A long poll of a minute tells no more than one of a second."""
    wait = (case.query or {}).get("wait_seconds")
    if isinstance(wait, int) and 1 < wait <= 60:
        case.query["wait_seconds"] = 1


@schemathesis.hook
def after_call(context, case, response):
    statuses[response.status_code] += 1


@atexit.register
def report():
    with open(os.environ["KELLET_STATUSES"], "w", encoding="utf-8") as file:
        json.dump(statuses, file)
