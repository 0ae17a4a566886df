// Building blocks of pages.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import type { Failure } from '../failure.ts';
import { age, dateTime, short, words } from '../format.ts';
import type { LiveState, Subscription } from '../live/live-feed.ts';
import { type Loaded, type Paged, useLiveState, useNow } from './data.ts';

/** The heading of a page, focused when the page opens, so that screen readers read it. */
export function Title({ children, text }: { readonly children?: ComponentChildren; readonly text: string }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${text} – Kellet`;
  }, [text]);
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);
  return (
    <header class="title">
      <h1 tabIndex={-1} ref={heading}>
        {text}
      </h1>
      {children}
    </header>
  );
}

/** An error, with the request id under which the server logged it. */
export function ErrorNotice({ failure }: { readonly failure: Failure | undefined }) {
  if (!failure) return null;
  return (
    <p class="notice error" role="alert">
      {failure.message}
      {failure.requestId !== '' && (
        <>
          {' '}
          <small>
            Request <code>{failure.requestId}</code>
          </small>
        </>
      )}
    </p>
  );
}

/** Shows a loaded value, or why there is none. */
export function Show<Value>({
  of,
  children,
}: {
  readonly of: Loaded<Value>;
  readonly children: (value: Value) => ComponentChildren;
}) {
  return (
    <>
      <ErrorNotice failure={of.failure} />
      {of.value !== undefined && children(of.value)}
      {of.value === undefined && of.isLoading && <p class="empty">Loading…</p>}
    </>
  );
}

const tones: Readonly<Record<string, string>> = {
  online: 'good',
  successful: 'good',
  succeeded: 'good',
  confirmed: 'good',
  completed: 'good',
  cleared: 'good',
  active: 'info',
  sent: 'info',
  downloading: 'info',
  submitted: 'info',
  seen: 'info',
  paused: 'warn',
  rolling_back: 'warn',
  rolled_back: 'warn',
  acknowledged: 'warn',
  warning: 'warn',
  minor: 'warn',
  failure: 'bad',
  failed: 'bad',
  timed_out: 'bad',
  critical: 'bad',
  major: 'bad',
};

/** A state as a coloured word. */
export function Tag({ state = 'unknown', tone }: { readonly state: string | undefined; readonly tone?: string }) {
  return <span class={`tag ${tone ?? tones[state] ?? ''}`}>{words(state)}</span>;
}

/** A time as an age, in full on hover. */
export function Age({ time }: { readonly time: string | undefined }) {
  const now = useNow();
  return (
    <time dateTime={time} title={dateTime(time)}>
      {age(time, now)}
    </time>
  );
}

/** The ends of an id; the whole of it on hover. */
export function Id({ id }: { readonly id: string }) {
  return <code title={id}>{short(id)}</code>;
}

/** A table whose rows become cards on narrow screens. */
export function Table({
  caption,
  columns,
  rows,
  empty,
}: {
  readonly caption: string;
  readonly columns: readonly string[];
  readonly rows: readonly { readonly key: string; readonly cells: readonly ComponentChildren[] }[];
  readonly empty: string;
}) {
  if (rows.length === 0) return <p class="empty">{empty}</p>;
  return (
    <table>
      <caption class="unseen">{caption}</caption>
      <thead>
        <tr>
          {columns.map((column) => (
            <th key={column} scope="col">
              {column}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map(({ key, cells }) => (
          <tr key={key}>
            {cells.map((cell, index) => (
              <td key={columns[index]} data-label={columns[index]}>
                {cell}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Moves through a list. */
export function Pager({ pages }: { readonly pages: Pick<Paged<unknown>, 'page' | 'next' | 'previous'> }) {
  const { page, next, previous } = pages;
  if (!next && !previous) return null;
  return (
    <nav class="pager" aria-label="Pages">
      <button type="button" onClick={previous} disabled={!previous}>
        Previous
      </button>
      <span>Page {page}</span>
      <button type="button" onClick={next} disabled={!next}>
        Next
      </button>
    </nav>
  );
}

/** A labelled input or select. */
export function Field({ label, children }: { readonly label: string; readonly children: ComponentChildren }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
    </label>
  );
}

/** A button that asks before it acts. */
export function ConfirmButton({
  label,
  question,
  tone,
  disabled,
  onConfirm,
}: {
  readonly label: string;
  readonly question: string;
  readonly tone?: 'danger' | 'primary';
  readonly disabled?: boolean;
  readonly onConfirm: () => void;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const decide = (isConfirmed: boolean): void => {
    dialog.current?.close();
    if (isConfirmed) onConfirm();
  };
  return (
    <>
      <button type="button" class={tone} disabled={disabled} onClick={() => dialog.current?.showModal()}>
        {label}
      </button>
      <dialog ref={dialog} aria-label={label}>
        <p>{question}</p>
        <div class="row end">
          <button type="button" onClick={() => decide(false)}>
            Cancel
          </button>
          <button type="button" class={tone ?? 'primary'} onClick={() => decide(true)}>
            {label}
          </button>
        </div>
      </dialog>
    </>
  );
}

const liveWords: Readonly<Record<LiveState, string>> = {
  off: 'not live',
  connecting: 'connecting…',
  live: 'live',
  waiting: 'connection lost, trying again…',
  refused: 'no live updates for this user',
};

/** Says whether the page is updated live. */
export function LiveMark({ channel }: { readonly channel: Subscription['channel'] }) {
  const state = useLiveState(channel);
  return (
    <span class={`live-mark ${state}`} role="status">
      {liveWords[state]}
    </span>
  );
}
