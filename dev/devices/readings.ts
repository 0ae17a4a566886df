// Recorded weather data as telemetry: daily observations of Seattle and New York from 2012 to 2015 in vega-datasets
// (source: NOAA), with their original dates.
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Reading } from './device.ts';

/** Daily observations of a station. */
export interface Station {
  /** "Seattle" or "New York". */
  location: string;
  readings: readonly Reading[];
}

const numericColumns = ['precipitation', 'temp_max', 'temp_min', 'wind'] as const;

/** Parses `weather.csv`: location, date, four numbers and the kind of weather, a row a day. */
export function parseWeather(csv: string): Station[] {
  const [header, ...rows] = csv.trimEnd().split('\n');
  const columns = header!.split(',');
  const stations = new Map<string, Reading[]>();
  for (const row of rows) {
    const values = row.split(',');
    const value = (column: string) => {
      const found = values[columns.indexOf(column)];
      if (found === undefined || found === '') throw new Error(`weather.csv: no ${column} in ${row}`);
      return found;
    };
    const location = value('location');
    const reading: Reading = {
      timestamp: `${value('date')}T12:00:00Z`,
      numeric_values: Object.fromEntries(numericColumns.map((column) => [column, Number(value(column))])),
      string_values: { weather: value('weather') },
    };
    const known = stations.get(location);
    if (known) known.push(reading);
    else stations.set(location, [reading]);
  }
  return [...stations].map(([location, readings]) => ({ location, readings }));
}

/** Returns the stations of the installed data set. */
export function weatherStations(): Station[] {
  const folder = dirname(dirname(fileURLToPath(import.meta.resolve('vega-datasets'))));
  return parseWeather(readFileSync(join(folder, 'data/weather.csv'), 'utf8'));
}

/**
 * Returns the readings of the device with this number: `count` consecutive days of a station, with a different first
 * day for each device, wrapping around at the end of the record.
 */
export function replay(stations: readonly Station[], index: number, count: number): Reading[] {
  const { readings } = stations[index % stations.length]!;
  if (count > readings.length) throw new Error(`the record has only ${readings.length} days`);
  const first = Math.floor(index / stations.length) * 29;
  return Array.from({ length: count }, (_, day) => readings[(first + day) % readings.length]!);
}
