// What every page can use: the session, the live feed, and messages to the reader.
import type { KelletClient } from '@kellet/client';
import { createContext } from 'preact';
import { useContext } from 'preact/hooks';
import type { LiveFeed } from '../live/live-feed.ts';
import type { Session } from '../session/session.ts';

/** The surroundings of a page. */
export interface PageContext {
  readonly session: Session;
  readonly client: KelletClient;
  readonly live: LiveFeed;
  /** Tells the reader what has happened. */
  readonly say: (message: string) => void;
}

export const Context = createContext<PageContext | undefined>(undefined);

/** Returns the surroundings. Throws outside the application. */
export function usePage(): PageContext {
  const context = useContext(Context);
  if (!context) throw new Error('not within the application');
  return context;
}
