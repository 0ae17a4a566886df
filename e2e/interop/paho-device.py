"""A device with paho: sends a point over each version of MQTT with QoS 1, and responds to a command."""
import json
import os
import sys

import paho.mqtt.client as mqtt

version = {"3.1.1": mqtt.MQTTv311, "5": mqtt.MQTTv5}[sys.argv[1]]
acknowledged = []


def on_connect(client, _data, _flags, reason, _properties):
    if reason.is_failure:
        sys.exit(f"refused: {reason}")
    client.subscribe("kellet/v1/commands", qos=1)


def on_subscribe(client, _data, _id, reasons, _properties):
    point = {"numeric_values": {"version": float(sys.argv[1][0])}}
    client.publish("kellet/v1/telemetry", json.dumps(point), qos=1)


def on_publish(client, _data, message_id, reason, _properties):
    if reason.is_failure:
        sys.exit(f"not accepted: {reason}")
    acknowledged.append(message_id)
    if len(acknowledged) == 1:
        print("stored", flush=True)
    else:
        client.disconnect()


def on_message(client, _data, message):
    command = json.loads(message.payload)
    response = {"success": True, "response": {"echo": command["params"]}}
    client.publish(f"kellet/v1/commands/{command['correlation_id']}/response", json.dumps(response), qos=1)


client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=version)
client.username_pw_set(os.environ["DEVICE_ID"], os.environ["DEVICE_KEY"])
client.on_connect, client.on_subscribe = on_connect, on_subscribe
client.on_publish, client.on_message = on_publish, on_message
client.connect("127.0.0.1", int(os.environ["MQTT_PORT"]))
client.loop_forever()
