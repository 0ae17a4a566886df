#!/usr/bin/env python3
"""The same device as device.ts and start.ts, over REST with Python's standard library alone.

  KELLET_URL=http://127.0.0.1:8080 PROVISION_KEY=... HARDWARE_ID=pump-3 FOLDER=/tmp/pump-3 python3 examples/device/device.py

Points wait in a database on disk until they are stored. Signatures of images are not checked: the standard library has
no Ed25519.
"""
import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import datetime, timezone

URL = os.environ.get("KELLET_URL", "http://127.0.0.1:8080")
HARDWARE_ID = os.environ.get("HARDWARE_ID", "pump-3")
FOLDER = os.environ.get("FOLDER", "pump-3")
CHUNK = 65536
MAXIMUM_POINTS = 100_000
RESTART = 75  # exit status after which the next image is started


def path(name):
    return os.path.join(FOLDER, name)


def save(name, value):
    """Replaces a file in one step; only its owner may read it."""
    with open(os.open(path(name) + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path(name) + ".new", path(name))


def load(name, default=None):
    try:
        with open(path(name)) as file:
            return json.load(file)
    except FileNotFoundError:
        return default


class Refused(Exception):
    """The platform's refusal, which another attempt would not change."""

    def __init__(self, status, text):
        super().__init__(f"{status} {text}")
        self.status = status


def call(method, where, body=None, key=None, timeout=30, headers=()):
    """Sends a request until there is a response. Waits in between, for a random and growing time."""
    for attempt in range(1_000_000):
        request = urllib.request.Request(URL + "/api/v1/" + where, method=method)
        for name, value in headers:
            request.add_header(name, value)
        if key:
            request.add_header("Authorization", "Bearer " + key)
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        wait = 0
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if error.code < 500 and error.code != 429:
                raise Refused(error.code, text) from error
            after = error.headers.get("Retry-After", "")
            wait = min(int(after), 3600) if after.isdigit() else 0
            print(f"{error.code} {text}", flush=True)
        except OSError as error:
            print(error, flush=True)
        except Exception as error:  # a response that ends too early
            print(repr(error), flush=True)
        time.sleep(wait + random.random() * min(60, 2 ** min(attempt, 6)))


class Device:
    def __init__(self):
        os.makedirs(FOLDER, mode=0o700, exist_ok=True)
        self.identity = load("identity.json")
        if not self.identity:
            claim = {"provision_key": os.environ["PROVISION_KEY"], "device_name": HARDWARE_ID, "hardware_id": HARDWARE_ID}
            self.identity = json.loads(call("POST", "provision", claim))
            if not self.identity["api_key"]:
                raise SystemExit("this hardware was claimed before, and its key is lost")
            save("identity.json", {name: self.identity[name] for name in ("device_id", "api_key")})
        self.id, self.key = self.identity["device_id"], self.identity["api_key"]
        self.interval = 1
        self.responses = {}  # a command may arrive twice: it is carried out once
        print("this is", self.id, flush=True)

    def call(self, method, where, body=None, **options):
        return json.loads(call(method, where, body, key=self.key, **options) or b"null")

    # Telemetry

    def points(self):
        database = sqlite3.connect(path("points.db"), isolation_level=None)
        database.execute("CREATE TABLE IF NOT EXISTS points (position INTEGER PRIMARY KEY AUTOINCREMENT, point TEXT)")
        return database

    def measure(self):
        database = self.points()
        while True:
            now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            point = {"device_id": self.id, "timestamp": now, "numeric_values": {"temperature": 20 + random.random()}}
            database.execute("INSERT INTO points (point) VALUES (?)", (json.dumps(point),))
            database.execute("DELETE FROM points WHERE position <= (SELECT max(position) FROM points) - ?", (MAXIMUM_POINTS,))
            time.sleep(self.interval)

    def send(self):
        database = self.points()
        limit = 500
        while True:
            rows = database.execute("SELECT position, point FROM points ORDER BY position LIMIT ?", (limit,)).fetchall()
            if not rows:
                time.sleep(0.5)
                continue
            try:
                result = self.call("POST", "telemetry", {"points": [json.loads(point) for _, point in rows]})
                for error in result["errors"]:
                    print("rejected:", error["message"], flush=True)
            except Refused as error:
                if error.status != 400:
                    print(error, flush=True)
                    time.sleep(30 + random.random() * 30)  # for example because the tenant is suspended
                    continue
                if len(rows) > 1:
                    limit = len(rows) // 2  # finds the point that is refused
                    continue
                print("rejected:", error, flush=True)
            database.execute("DELETE FROM points WHERE position <= ?", (rows[-1][0],))
            limit = 500

    # Attributes

    def apply(self, changed):
        interval = changed.get("interval")
        if isinstance(interval, (int, float)) and interval >= 1:
            self.interval = interval
            self.call("PATCH", f"devices/{self.id}/attributes", {"client": {"interval": interval}})

    # Commands

    def obey(self, command):
        method, params = command["method"], command.get("params") or {}
        if method == "attributes_changed":
            self.apply(params["changed"])
            return {"success": True}
        if method == "blink":
            print("blinking", flush=True)
            return {"success": True, "response": {"blinked": params.get("times", 1)}}
        return {"success": False, "error": f"unknown command {method}"}

    def serve(self):
        attributes = self.call("GET", f"devices/{self.id}/attributes")
        self.apply({name: attribute["value"] for name, attribute in attributes["shared"].items()})
        while True:
            where = f"devices/{self.id}/rpc/pending?wait_seconds=45"
            for command in self.call("GET", where, timeout=75)["commands"]:
                correlation_id = command["correlation_id"]
                try:
                    if command["method"] == "ota_start":
                        self.update()  # the report is the response
                        continue
                    if correlation_id not in self.responses:
                        self.responses[correlation_id] = self.obey(command)
                        if len(self.responses) > 1000:
                            del self.responses[next(iter(self.responses))]
                    self.call("POST", f"devices/rpc/{correlation_id}/response", self.responses[correlation_id])
                except Refused as error:
                    print(error, flush=True)  # for example a command that was cancelled meanwhile

    # Updates: the state of two slots is in slots.json; start() chooses the one that runs.

    def update(self):
        try:
            package = self.call("GET", f"devices/{self.id}/ota")
        except Refused as error:
            if error.status == 404:
                return
            raise
        slots = load("slots.json", FACTORY)
        name = {key: package[key] for key in ("package_id", "rollout_id", "version")}
        if slots["images"].get(slots["active"], {}).get("package_id") == package["package_id"]:
            return self.report(dict(slots, result=result_of(name, "success", package["version"])))
        spare = other(slots["active"])
        if load(f"slot-{spare}.package") != package["sha256"]:
            open(path(f"slot-{spare}.image"), "wb").close()
            save(f"slot-{spare}.package", package["sha256"])
        with open(path(f"slot-{spare}.image"), "ab") as image:  # continues where an earlier download ended
            while image.tell() < package["size_bytes"]:
                length = min(CHUNK, package["size_bytes"] - image.tell())
                where = f"devices/{self.id}/ota/chunk?package_id={package['package_id']}&offset={image.tell()}&length={length}"
                data = call("GET", where, key=self.key, headers=[("Accept", "application/octet-stream")])
                image.write(data)
                image.flush()
            os.fsync(image.fileno())
        with open(path(f"slot-{spare}.image"), "rb") as image:
            digest = hashlib.sha256(image.read()).hexdigest()
        if digest != package["sha256"]:
            os.remove(path(f"slot-{spare}.package"))
            return self.report(dict(slots, result=result_of(name, "failure", version_of(slots), "checksum mismatch")))
        save("slots.json", dict(slots, images=dict(slots["images"], **{spare: name}), trial={"starts": 0}))
        os._exit(RESTART)

    def report(self, slots):
        """Reports a result. It is kept until the platform has acknowledged it, also across a restart."""
        save("slots.json", slots)
        try:
            self.call("POST", f"devices/{self.id}/ota/report", dict(slots["result"], device_id=self.id))
        except Refused as error:
            print(error, flush=True)
        save("slots.json", {key: value for key, value in slots.items() if key != "result"})

    def end_trial(self):
        """The image on trial is healthy if it begins with "firmware", and if this device reaches the platform."""
        slots = load("slots.json", FACTORY)
        if "trial" in slots:
            image = slots["images"][other(slots["active"])]
            del slots["trial"]
            with open(path(f"slot-{other(slots['active'])}.image"), "rb") as file:
                is_healthy = file.read().startswith(b"firmware")
            if not is_healthy:
                save("slots.json", dict(slots, result=result_of(image, "failure", version_of(slots), "the image is broken")))
                os._exit(RESTART)
            self.call("GET", f"devices/{self.id}/attributes")
            slots = dict(slots, active=other(slots["active"]), result=result_of(image, "success", image["version"]))
        if "result" in slots:
            self.report(slots)

    def run(self):
        for task in (self.measure, self.send):
            threading.Thread(target=self.forever, args=(task,), daemon=True).start()
        self.end_trial()
        self.serve()

    def forever(self, task):
        try:
            task()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)


FACTORY = {"active": "a", "images": {"a": {"package_id": "", "rollout_id": "", "version": "1.0.0"}}}


def other(slot):
    return "b" if slot == "a" else "a"


def version_of(slots):
    return slots["images"][slots["active"]]["version"]


def result_of(image, status, version, error=""):
    return {"rollout_id": image["rollout_id"], "status": status, "firmware_version": version, "error": error}


def start():
    """Starts the device again and again, as a boot loader does. An image on trial is started three times at most."""
    status, stopped, child = RESTART, False, None

    def stop(number, _frame):
        nonlocal stopped
        stopped = True
        if child:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    while status == RESTART and not stopped:
        slots = load("slots.json", FACTORY)
        if "trial" in slots:
            slots["trial"]["starts"] += 1
            if slots["trial"]["starts"] > 3:
                del slots["trial"]
                image = slots["images"][other(slots["active"])]
                slots["result"] = result_of(image, "failure", version_of(slots), "not confirmed healthy after 3 starts")
            save("slots.json", slots)
        child = subprocess.Popen([sys.executable, __file__, "run"])
        status = child.wait()
    sys.exit(max(status, 0))


if __name__ == "__main__":
    try:
        Device().run() if sys.argv[1:] == ["run"] else start()
    except KeyboardInterrupt:
        pass
