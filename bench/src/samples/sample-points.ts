// Sample points: four numbers and two strings, about 220 bytes of JSON.

/** Returns the n-th point of a device. They begin years ago, so that a load of ten minutes does not get to the future. */
export function samplePoint(deviceId: string, n: number) {
  return {
    device_id: deviceId,
    timestamp: new Date(Date.UTC(2016, 0, 1) + n * 1000).toISOString(),
    numeric_values: {
      humidity: 40 + (n % 200) / 10,
      pressure: 1000 + (n % 371) / 7,
      temperature: 20 + (n % 97) / 8,
      voltage: 3.3 + (n % 31) / 100,
    },
    string_values: { firmware: '1.4.2', state: n % 2 === 0 ? 'heating' : 'idle' },
  };
}
