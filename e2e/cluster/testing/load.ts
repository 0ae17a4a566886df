// A device that sends points and a user who reads, without a pause, while an installation is disturbed.
import { randomUUID } from 'node:crypto';
import { Rest } from '../../../dev/clients/rest.ts';

/** A reading that the profile of the quick start accepts. */
const reading = { precipitation: 0, temp_max: 20.5, temp_min: 12, wind: 3 };

/** What happened during a load. */
export interface LoadResult {
  requests: number;
  acknowledged: number;
  /** Requests that got no response, or an error. */
  failures: string[];
}

/** Requests at a steady rate until `stop`. */
export class Load {
  private readonly admin: Rest;
  private readonly device: Rest;
  private readonly deviceId: string;
  private readonly acknowledged: string[] = [];
  private readonly failures: string[] = [];
  private requests = 0;
  private running = true;
  private finished: Promise<unknown> = Promise.resolve();

  private constructor(admin: Rest, device: Rest, deviceId: string) {
    this.admin = admin;
    this.device = device;
    this.deviceId = deviceId;
  }

  /** Creates a device and starts. */
  static async start(base: string, user: { email: string; password: string }): Promise<Load> {
    const admin = await Rest.login(base, user);
    const { profiles } = await admin.client.get('/api/v1/profiles');
    const { device, api_key: key } = await admin.client.post('/api/v1/devices', {
      body: { name: 'load', hardware_id: `load-${randomUUID()}`, profile_id: profiles[0]!.profile_id },
    });
    const load = new Load(admin, new Rest(base, key), device!.device_id);
    load.finished = Promise.all([load.repeat(() => load.send()), load.repeat(() => load.read())]);
    return load;
  }

  /** Ends the load. */
  async stop(): Promise<LoadResult> {
    this.running = false;
    await this.finished;
    return { requests: this.requests, acknowledged: this.acknowledged.length, failures: this.failures };
  }

  /** Returns the times of acknowledged points that the device's history does not have. */
  async missing(): Promise<string[]> {
    const found = new Set<string>();
    let token: string | undefined;
    do {
      const page = await this.admin.client.get('/api/v1/telemetry/{device_id}', {
        params: {
          path: { device_id: this.deviceId },
          query: { page_size: 10_000, ...(token ? { page_token: token } : {}) },
        },
      });
      for (const { timestamp } of page.points) found.add(new Date(timestamp).toISOString());
      token = page.next_page_token || undefined;
    } while (token);
    return this.acknowledged.filter((time) => !found.has(time));
  }

  private async repeat(request: () => Promise<void>): Promise<void> {
    while (this.running) {
      this.requests += 1;
      try {
        await request();
      } catch (error) {
        const { message, cause } = error as Error;
        this.failures.push(`${new Date().toISOString()} ${message} ${cause instanceof Error ? cause.message : ''}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  private async send(): Promise<void> {
    const timestamp = new Date().toISOString();
    const { accepted, rejected } = await this.device.client.post('/api/v1/telemetry', {
      body: { points: [{ device_id: this.deviceId, timestamp, numeric_values: reading }] },
    });
    if (accepted !== 1) throw new Error(`the point was rejected: ${JSON.stringify(rejected)}`);
    this.acknowledged.push(timestamp);
  }

  private async read(): Promise<void> {
    await this.admin.client.get('/api/v1/devices/{device_id}', { params: { path: { device_id: this.deviceId } } });
  }
}
