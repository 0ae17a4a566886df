// How far a rollout has come.
import type { Schema } from '@kellet/client';
import { count } from '../format.ts';
import { countsOf, progressOf } from './rollout-view.ts';

/** Shows succeeded, failed, running and skipped devices as parts of all. */
export function ProgressBar({ rollout }: { readonly rollout: Schema<'Rollout'> }) {
  const parts = progressOf(rollout);
  const text = parts
    .filter((part) => part.count > 0)
    .map((part) => `${count(part.count)} ${part.name}`)
    .join(', ');
  const total = `${count(countsOf(rollout).eligible)} devices`;
  return (
    <div class="progress">
      <div class="bar" role="img" aria-label={`${text || 'none begun'} of ${total}`}>
        {parts.map((part) => (
          <span key={part.name} class={part.name.replace(' ', '-')} style={{ width: `${part.percent}%` }} />
        ))}
      </div>
      <small>
        {text || 'none begun'} of {total}
      </small>
    </div>
  );
}
