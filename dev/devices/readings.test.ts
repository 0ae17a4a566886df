import { expect } from 'chai';
import { parseWeather, replay, weatherStations } from './readings.ts';

describe('recorded readings', () => {
  const csv = [
    'location,date,precipitation,temp_max,temp_min,wind,weather',
    'Seattle,2012-01-01,0.0,12.8,5.0,4.7,drizzle',
    'Seattle,2012-01-02,10.9,10.6,2.8,4.5,rain',
    'New York,2012-01-01,0.0,13.3,4.4,2.7,sun',
    '',
  ].join('\n');

  it('parses a row as one point', () => {
    const [seattle, newYork] = parseWeather(csv);
    expect(seattle!.readings).to.have.length(2);
    expect(newYork!.location).to.equal('New York');
    expect(seattle!.readings[1]).to.deep.equal({
      timestamp: '2012-01-02T12:00:00Z',
      numeric_values: { precipitation: 10.9, temp_max: 10.6, temp_min: 2.8, wind: 4.5 },
      string_values: { weather: 'rain' },
    });
  });

  it('rejects an incomplete row', () => {
    expect(() => parseWeather(csv.replace('10.6', ''))).to.throw('no temp_max');
  });

  it('contain four years of both stations', () => {
    const stations = weatherStations();
    expect(stations.map(({ location, readings }) => [location, readings.length])).to.deep.equal([
      ['Seattle', 1461],
      ['New York', 1461],
    ]);
  });

  it('have distinct days for each device, also past the end of the record', () => {
    const stations = weatherStations();
    for (const index of [0, 1, 49, 99]) {
      const days = replay(stations, index, 112).map(({ timestamp }) => timestamp);
      expect(new Set(days).size, `device ${index}`).to.equal(112);
    }
  });
});
