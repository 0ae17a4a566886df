import { expect } from 'chai';
import { dueMessages, isFailing } from './simulation.ts';
import { progressLine, Statistics, summaryText } from './statistics.ts';

describe('a simulation', () => {
  const dues: [number, number, number, number][] = [
    [0, 100, 0, 0],
    [9, 100, 0, 0],
    [10, 100, 0, 1],
    [1000, 100, 40, 60],
    [1000, 0.5, 0, 0],
    [2000, 0.5, 0, 1],
    [1000, 100, 100, 0],
  ];
  for (const [elapsed, perSecond, sent, expected] of dues) {
    it(`is ${expected} messages behind after ${elapsed} ms at ${perSecond} per second and ${sent} sent`, () =>
      expect(dueMessages(elapsed, perSecond, sent)).to.equal(expected));
  }

  for (const [share, devices, expected] of [
    [0, 1000, 0],
    [0.02, 10_000, 200],
    [0.1, 10, 1],
    [1 / 3, 9, 3],
    [1, 7, 7],
  ] as const) {
    it(`has ${expected} failing devices of ${devices} at ${share * 100} %`, () =>
      expect(Array.from({ length: devices }, (_, index) => isFailing(index, share)).filter(Boolean)).to.have.length(
        expected,
      ));
  }

  it('has a summary with percentiles', () => {
    const statistics = new Statistics();
    expect(progressLine(statistics, 1, 0)).to.include('0 points/s');
    for (let milliseconds = 1; milliseconds <= 100; milliseconds++) statistics.responded(milliseconds);
    statistics.accepted = 100;
    for (let index = 0; index < 1000; index++) statistics.error(new Error(`error ${index % 20}`));
    const summary = statistics.summary(2);
    expect(summary.points_per_second).to.equal(50);
    expect(summary.latency_ms.p50).to.be.closeTo(50, 1);
    expect(summary.latency_ms.p99).to.be.closeTo(99, 1);
    expect(Object.keys(summary.errors), 'bounded').to.have.length(10);
    expect(summaryText(summary)).to.match(/points accepted +100 \(50 per second\)\n/);
  });
});
