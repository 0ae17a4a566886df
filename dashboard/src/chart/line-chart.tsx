// A line chart with two axes. Its current value and its range are text too, for readers who cannot see it.
import { useState } from 'preact/hooks';
import { dateTime, measure } from '../format.ts';
import { linePath, nearest, position, type Range, type Sample, ticks, valueRange } from './scale.ts';

const width = 640;
const height = 200;

interface LineChartProps {
  readonly name: string;
  readonly samples: readonly Sample[];
  readonly times: Range;
  /** A longer gap between samples interrupts the line, in milliseconds. */
  readonly gap: number;
}

/** Draws the samples within `times`. */
export function LineChart({ name, samples: all, times, gap }: LineChartProps) {
  const [pointed, setPointed] = useState<number>();
  const samples = all.filter(({ at }) => at >= times.from && at <= times.to);
  if (samples.length === 0) return <p class="empty">No values in this time.</p>;
  const values = valueRange(samples);
  const shown = pointed === undefined ? samples.at(-1)! : nearest(samples, pointed)!;
  const point = (event: PointerEvent): void => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    setPointed(times.from + ((event.clientX - box.left) / box.width) * (times.to - times.from));
  };
  const marks = ticks(values, 5);
  const numbers = samples.map(({ value }) => value);
  const range = `from ${measure(numbers.reduce((a, b) => Math.min(a, b)))} to ${measure(numbers.reduce((a, b) => Math.max(a, b)))}`;
  const y = (value: number): number => height - position(value, values, height);
  return (
    <figure class="chart">
      <figcaption>
        <strong>{measure(shown.value)}</strong> <span>{dateTime(new Date(shown.at).toISOString())}</span>
      </figcaption>
      <div class="plot">
        <div class="scale" aria-hidden="true">
          {marks.map((mark) => (
            <span key={mark} style={{ top: `${(y(mark) / height) * 100}%` }}>
              {measure(mark)}
            </span>
          ))}
        </div>
        <svg
          viewBox={`0 0 ${width} ${height}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`${name}: ${samples.length} values ${range}`}
          onPointerMove={point}
          onPointerLeave={() => setPointed(undefined)}
        >
          {marks.map((mark) => (
            <line key={mark} class="grid" x1={0} x2={width} y1={y(mark)} y2={y(mark)} />
          ))}
          <path class="line" d={linePath(samples, times, values, { width, height, gap })} />
          <line
            class="pointer"
            x1={position(shown.at, times, width)}
            x2={position(shown.at, times, width)}
            y1={0}
            y2={height}
          />
          {/* A line of no length with round ends: a circle would be stretched with the chart. */}
          <line
            class="dot"
            x1={position(shown.at, times, width)}
            x2={position(shown.at, times, width)}
            y1={y(shown.value)}
            y2={y(shown.value)}
          />
        </svg>
      </div>
      <p class="times">
        <span>{dateTime(new Date(times.from).toISOString())}</span>
        <span>{dateTime(new Date(times.to).toISOString())}</span>
      </p>
    </figure>
  );
}
