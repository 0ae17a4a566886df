"""Schemathesis hooks for Kellet: signing in, avoiding requests that would end the run, and counting responses."""

import atexit
import collections
import json
import os
import re
import sys
import time

import requests
import schemathesis

base = os.environ["KELLET_URL"]
key = os.environ.get("KELLET_KEY")
# One in this many requests of each operation is sent without a credential.
ANONYMOUS_EVERY = 25
PROGRESS_SECONDS = 10

responses = collections.defaultdict(collections.Counter)
progress = {"at": time.monotonic(), "requests": 0}
session = {}


def sign_in():
    """Signs the caller in. May have to wait, because many wrong passwords have been tried from this address."""
    account = {"email": os.environ["KELLET_EMAIL"], "password": os.environ["KELLET_PASSWORD"]}
    for _ in range(20):
        response = requests.post(base + "/api/v1/auth/login", json=account, timeout=30)
        if response.status_code != 429:
            break
        time.sleep(int(response.headers.get("Retry-After", "1")))
    response.raise_for_status()
    return response.json()["access_token"]


def own_user(token):
    validated = requests.post(
        base + "/api/v1/auth/validate", json={"token": token}, headers={"Authorization": f"Bearer {token}"}, timeout=30
    )
    return validated.json().get("user_id")


def credential(operation_id):
    """Returns the API key or a valid access token; logout uses a separate session."""
    if key is not None:
        return key
    if operation_id == "Logout":
        return sign_in()
    if "token" not in session:
        session["token"] = sign_in()
        session["user"] = own_user(session["token"])
    return session["token"]


def spare_the_caller(operation_id, case):
    """Keeps the caller working: it must not delete its account, lock out its address, need a second factor, or wait in vain."""
    path = case.path_parameters or {}
    if operation_id in ("UpdateUser", "DeleteUser") and path.get("user_id") == session.get("user"):
        path["user_id"] = "someone-else"
    body = case.body if isinstance(case.body, dict) else {}
    allowed = body.get("ip_allowlist")
    if operation_id in ("UpdateTenant", "UpdateOwnTenant") and isinstance(allowed, list) and allowed:
        allowed.append("127.0.0.0/8")
    if operation_id in ("UpdateTenant", "UpdateOwnTenant"):
        body.pop("mfa_required", None)
    # Long polls of a minute add nothing over those of a second.
    wait = (case.query or {}).get("wait_seconds")
    if re.fullmatch("[0-9]+", str(wait)) and 1 <= int(wait) <= 60:
        case.query["wait_seconds"] = 1 if requests_to(case) % 10 == 0 else 0
    # An expired deadline correctly returns 504, which would hide other results.
    if re.fullmatch("[0-9]{1,8}[HMSmun]", str((case.headers or {}).get("grpc-timeout", ""))):
        case.headers["grpc-timeout"] = "60S"


def requests_to(case):
    return sum(responses[case.operation.label].values())


def operation_id_of(case):
    return case.operation.definition.raw.get("operationId")


@schemathesis.hook
def before_call(context, case, kwargs):
    operation_id = operation_id_of(case)
    token = credential(operation_id)
    spare_the_caller(operation_id, case)
    if requests_to(case) % ANONYMOUS_EVERY != ANONYMOUS_EVERY - 1:
        case.headers["Authorization"] = f"Bearer {token}"


@schemathesis.hook
def after_call(context, case, response):
    responses[case.operation.label][response.status_code] += 1
    # The request may have ended the session: use a new one for the next request.
    if response.status_code == 401 and case.headers.get("Authorization") == f"Bearer {session.get('token')}":
        session.pop("token")
    # The platform administrator has a rate limit too, beyond which nothing else could be tested.
    if response.status_code == 429 and "x-ratelimit-reset" in response.headers:
        time.sleep(int(response.headers["retry-after"][0]))
    show_progress()


def show_progress():
    progress["requests"] += 1
    now = time.monotonic()
    if now - progress["at"] >= PROGRESS_SECONDS:
        progress["at"] = now
        print(f"    {progress['requests']} requests, {len(responses)} operations", file=sys.stderr, flush=True)


@atexit.register
def report():
    with open(os.environ["KELLET_RESPONSES"], "w", encoding="utf-8") as file:
        json.dump(responses, file)
