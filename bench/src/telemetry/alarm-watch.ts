// Measures how long after the response to a point its alarm is seen on /ws, on the broker and at a webhook.
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { type BrokerEvents, followEvents } from '../../../dev/clients/broker-events.ts';
import { LiveFeed } from '../../../dev/clients/live-feed.ts';
import type { Environment } from '../environment.ts';
import { samplePoint } from '../samples/sample-points.ts';
import { signIn } from '../sign-in.ts';

/** Points with a temperature above this, and up to ten degrees above it, raise an alarm of the first rule alone. */
export const alarmThreshold = 1000;

const ways = ['on /ws', 'on the broker', 'at a webhook'] as const;
/** Where an alarm is seen. */
export type Way = (typeof ways)[number];

const patienceMilliseconds = 30_000;
const pollMilliseconds = 1;

/** A subscriber of each kind. */
export class AlarmWatch {
  private readonly environment: Environment;
  private readonly server: Server;
  private readonly feed: LiveFeed;
  private readonly events: BrokerEvents;
  /** Devices whose alarms the webhook has received. */
  private readonly called: Set<string>;

  private constructor(
    environment: Environment,
    parts: { server: Server; feed: LiveFeed; events: BrokerEvents; called: Set<string> },
  ) {
    this.environment = environment;
    this.server = parts.server;
    this.feed = parts.feed;
    this.events = parts.events;
    this.called = parts.called;
  }

  static async open(environment: Environment): Promise<AlarmWatch> {
    const called = new Set<string>();
    const server = createServer((request, response) => {
      void text(request).then((body) => {
        called.add((JSON.parse(body) as { data: { device_id: string } }).data.device_id);
        response.end();
      });
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const [token] = await signIn(environment, 'tenant_admin', 1);
    const feed = await LiveFeed.open(`http://${environment.rest.host}:${environment.rest.port}`, token!);
    await feed.subscribe({ channel: 'alarms' });
    const events = await followEvents(environment.settings['KELLET_NATS_URL']!, 'alarm.raised.>');
    return new AlarmWatch(environment, { server, feed, events, called });
  }

  /** URL of the webhook. */
  get webhook(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}/alarms`;
  }

  /** Raises an alarm of each device, one after another, and returns the times in milliseconds. */
  async measure(deviceIds: readonly string[]): Promise<{ way: Way; milliseconds: number[] }[]> {
    const times = ways.map((way) => ({ way, milliseconds: [] as number[] }));
    for (const deviceId of deviceIds) {
      const of = await this.timesOf(deviceId);
      for (const { way, milliseconds } of times) milliseconds.push(of.get(way)!);
    }
    return times;
  }

  private async timesOf(deviceId: string): Promise<Map<Way, number>> {
    const { rest, apiKey } = this.environment;
    const sample = samplePoint(deviceId, 0);
    const point = {
      ...sample,
      // After all points of the load, so that rules see it as the newest.
      timestamp: new Date().toISOString(),
      numeric_values: { ...sample.numeric_values, temperature: alarmThreshold + 1 },
    };
    const response = await fetch(`http://${rest.host}:${rest.port}/api/v1/telemetry`, {
      ...{ method: 'POST', headers: { 'content-type': 'application/json', 'x-api-key': apiKey } },
      body: JSON.stringify({ points: [point] }),
    });
    const responded = performance.now();
    if (!response.ok) throw new Error(`the point was refused: ${response.status} ${await response.text()}`);
    const isSeen: Record<Way, () => boolean> = {
      'on /ws': () => this.feed.messages.some((message) => JSON.stringify(message).includes(deviceId)),
      'on the broker': () => this.events.received.some(({ data }) => data.data?.['device_id'] === deviceId),
      'at a webhook': () => this.called.has(deviceId),
    };
    const seen = new Map<Way, number>();
    while (seen.size < ways.length) {
      const passed = performance.now() - responded;
      for (const way of ways) if (!seen.has(way) && isSeen[way]()) seen.set(way, passed);
      if (passed > patienceMilliseconds) throw new Error(`the alarm was seen only ${[...seen.keys()].join(', ')}`);
      await sleep(pollMilliseconds);
    }
    return seen;
  }

  async close(): Promise<void> {
    this.feed.close();
    await this.events.close();
    this.server.closeAllConnections();
    this.server.close();
  }
}
