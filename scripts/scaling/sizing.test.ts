// The arithmetic of docs/scaling.md.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'chai';
import { parse } from 'yaml';
import { collectConfig } from '../../apiserver/src/config/config.ts';
import { assumptions, type Costs, type Plan, sizing } from './sizing.ts';

const cost = (apiserver: number, postgres: number) => ({ apiserver, postgres, from: '' });
const size = (value: number) => ({ value, from: '' });
const costs: Costs = {
  requestMicroseconds: cost(200, 100),
  pointMicroseconds: cost(10, 5),
  pollMicroseconds: cost(100, 10),
  chunkMicroseconds: cost(100, 20),
  claimMicroseconds: cost(0, 0),
  streamBytes: size(32_000),
  hotPointBytes: size(300),
  coldPointBytes: size(50),
};
const plan: Plan = {
  devices: 600_000,
  pointSeconds: 60,
  pointsPerRequest: 10,
  pollSeconds: 0,
  artifactMegabytes: 0,
  rolloutHours: 24,
  hotHours: 24,
};

describe('the sizing of an installation', () => {
  it('adds what requests and points cost on each side', () => {
    const needed = sizing(plan, costs);
    expect(needed).to.include({ pointsPerSecond: 10_000, requestsPerSecond: 1000, pollsPerSecond: 0 });
    // 1,000 × 200 µs + 10,000 × 10 µs, and 1,000 × 100 µs + 10,000 × 5 µs.
    expect(needed.apiserverCores).to.be.closeTo(0.3, 1e-9);
    expect(needed.postgresCores).to.be.closeTo(0.15, 1e-9);
  });

  it('adds polls instead of streams, and the chunks of an update', () => {
    const polling = sizing({ ...plan, pollSeconds: 60 }, costs);
    expect(polling.pollsPerSecond).to.equal(10_000);
    expect(polling.apiserverCores).to.be.closeTo(1.3, 1e-9);
    expect(polling.streamGigabytes).to.equal(0);
    // 10 MB are 153 chunks; 600,000 devices in a day.
    const updating = sizing({ ...plan, artifactMegabytes: 10 }, costs);
    expect(updating.chunksPerSecond).to.be.closeTo(1062.5, 0.1);
    expect(updating.postgresCores).to.be.closeTo(0.15 + 0.02125, 1e-6);
    expect(updating.rolloutMegabitsPerSecond).to.be.closeTo(555.6, 0.1);
  });

  for (const [what, change, pods] of [
    ['two at least', { devices: 10 }, 2],
    ['one for every 10,000 connections', {}, 60],
    ['twice the cores of work without connections', { pollSeconds: 6 }, 21],
  ] as const) {
    it(`needs pods: ${what}`, () => {
      expect(sizing({ ...plan, ...change }, costs).pods).to.equal(pods);
    });
  }

  it('counts storage and transactions from points', () => {
    const needed = sizing(plan, costs);
    expect(needed.hotGigabytes).to.be.closeTo(259.2, 1e-6);
    expect(needed.coldTerabytesPerYear).to.be.closeTo(15.768, 1e-6);
    expect(needed.streamGigabytes).to.be.closeTo(19.2, 1e-6);
    expect(needed.transactionsPerSecond).to.equal(10);
  });

  it('needs another cell when a PostgreSQL has no more cores, or the fleet is too large', () => {
    expect(sizing(plan, costs).cells).to.equal(1);
    expect(sizing({ ...plan, devices: 2_500_000 }, costs).cells).to.equal(3);
    // 600,000 points a second in requests of one: 600,000 × 105 µs are 63 cores of work, of which a server does 8.
    expect(sizing({ ...plan, pointSeconds: 1, pointsPerRequest: 1 }, costs).cells).to.equal(8);
  });

  it('is made from the costs of a request and a point that both measurements have', () => {
    const measured = parse(readFileSync(join(import.meta.dirname, 'costs.yaml'), 'utf8')) as Costs;
    const { requestMicroseconds: request, pointMicroseconds: point } = measured;
    for (const [side, one, each] of [
      ['apiserver', 237, 12.3],
      ['postgres', 77, 6.4],
    ] as const) {
      expect(request[side] + point[side], side).to.be.closeTo(one, 0.5);
      expect(request[side] / 100 + point[side], side).to.be.closeTo(each, 0.05);
    }
  });

  it('assumes the defaults of the settings that it names', () => {
    const required = { KELLET_DATABASE_URL: 'x', KELLET_NATS_URL: 'nats://x', KELLET_CONTROL_SECRET: 'x'.repeat(32) };
    const { config } = collectConfig(required, []);
    expect(config.maximumConnections).to.equal(assumptions.connectionsPerGateway);
    expect(config.batchPoints).to.equal(assumptions.batchPoints);
  });

  it('is made from costs that all say where they come from', () => {
    const measured = parse(readFileSync(join(import.meta.dirname, 'costs.yaml'), 'utf8')) as Record<
      string,
      { from: string }
    >;
    expect(measured).to.have.all.keys(Object.keys(costs));
    for (const [name, { from, ...figures }] of Object.entries(measured)) {
      expect(from, name).to.match(/\S/);
      for (const figure of Object.values(figures)) expect(figure, name).to.be.a('number').above(0);
    }
  });
});
