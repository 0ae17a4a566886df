// Reading from the API in pages: one value that is read again from time to time, and lists page by page.
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { type Failure, failureOf, isSignInNeeded } from '../failure.ts';
import type { LiveState, Subscription } from '../live/live-feed.ts';
import { usePage } from './context.ts';

/** The state of a read. */
export interface Loaded<Value> {
  /** The latest value; stays while it is read again. */
  readonly value: Value | undefined;
  readonly failure: Failure | undefined;
  readonly isLoading: boolean;
  /** Reads again. */
  readonly reload: () => void;
  /** Replaces the value, for example by the response to a change. */
  readonly set: (value: Value) => void;
}

/**
 * Reads a value when `key` changes, and every `pollSeconds` while the page is visible. Responses for an earlier key are
 * dropped.
 */
export function useLoaded<Value>(key: string, read: () => Promise<Value>, pollSeconds = 0): Loaded<Value> {
  const { session } = usePage();
  const [state, setState] = useState<{ key: string; value?: Value; failure?: Failure; isLoading: boolean }>({
    key,
    isLoading: true,
  });
  const latest = useRef(0);
  const reader = useRef(read);
  reader.current = read;
  const reload = useCallback(() => {
    latest.current += 1;
    const asked = latest.current;
    setState((now) => (now.key === key ? { ...now, isLoading: true } : { key, isLoading: true }));
    reader.current().then(
      (value) => {
        if (asked === latest.current) setState({ key, value, isLoading: false });
      },
      (error: unknown) => {
        if (isSignInNeeded(error)) return session.end('expired');
        if (asked !== latest.current) return;
        setState((now) => ({ ...now, key, failure: failureOf(error), isLoading: false }));
      },
    );
  }, [key, session]);
  const set = useCallback(
    (value: Value) => {
      latest.current += 1;
      setState({ key, value, isLoading: false });
    },
    [key],
  );
  useEffect(() => {
    reload();
    // A response after this page was left must not change anything.
    return () => void (latest.current += 1);
  }, [reload]);
  useEffect(() => {
    if (pollSeconds === 0) return undefined;
    const timer = setInterval(() => {
      if (!document.hidden) reload();
    }, pollSeconds * 1000);
    const onVisible = (): void => {
      if (!document.hidden) reload();
    };
    document.addEventListener('visibilitychange', onVisible);
    return () => {
      clearInterval(timer);
      document.removeEventListener('visibilitychange', onVisible);
    };
  }, [reload, pollSeconds]);
  const isCurrent = state.key === key;
  return {
    value: isCurrent ? state.value : undefined,
    failure: isCurrent ? state.failure : undefined,
    isLoading: !isCurrent || state.isLoading,
    reload,
    set,
  };
}

/** The pages of a list, of which one is held at a time. */
export interface Paged<Value> extends Loaded<Value> {
  /** Number of the page, from 1. */
  readonly page: number;
  readonly next: (() => void) | undefined;
  readonly previous: (() => void) | undefined;
}

/** Reads a list page by page. A change of `key`, such as another filter, begins at the first page. */
export function usePages<Value extends { readonly next_page_token: string }>(
  key: string,
  read: (pageToken: string) => Promise<Value>,
  pollSeconds = 0,
): Paged<Value> {
  const [place, setPlace] = useState<{ key: string; tokens: readonly string[] }>({ key, tokens: [] });
  const tokens = place.key === key ? place.tokens : [];
  const token = tokens.at(-1) ?? '';
  const loaded = useLoaded(`${key} ${token}`, () => read(token), pollSeconds);
  const following = loaded.value?.next_page_token ?? '';
  return {
    ...loaded,
    page: tokens.length + 1,
    next: following === '' ? undefined : () => setPlace({ key, tokens: [...tokens, following] }),
    previous: tokens.length === 0 ? undefined : () => setPlace({ key, tokens: tokens.slice(0, -1) }),
  };
}

/** A change that the user has requested. */
export interface Action<Arguments extends unknown[]> {
  readonly run: (...given: Arguments) => void;
  readonly isRunning: boolean;
  readonly failure: Failure | undefined;
}

/** Runs a change, one at a time. */
export function useAction<Arguments extends unknown[]>(act: (...given: Arguments) => Promise<void>): Action<Arguments> {
  const { session } = usePage();
  const [state, setState] = useState<{ isRunning: boolean; failure?: Failure }>({ isRunning: false });
  const run = (...given: Arguments): void => {
    if (state.isRunning) return;
    setState({ isRunning: true });
    act(...given).then(
      () => setState({ isRunning: false }),
      (error: unknown) => {
        if (isSignInNeeded(error)) return session.end('expired');
        setState({ isRunning: false, failure: failureOf(error) });
      },
    );
  };
  return { run, ...state, failure: state.failure };
}

/** Returns the state of a channel of the live feed, and renders again when it changes. */
export function useLiveState(channel: Subscription['channel']): LiveState {
  const { live } = usePage();
  const [state, setState] = useState(live.stateOf(channel));
  useEffect(() => {
    setState(live.stateOf(channel));
    return live.watch(() => setState(live.stateOf(channel)));
  }, [live, channel]);
  return state;
}

/** Returns the current time, renewed every ten seconds, for ages. */
export function useNow(): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 10_000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
