// The application: who is signed in, the frame around the pages, and which page is shown.
import type { Tokens } from '@kellet/client';
import { useEffect, useMemo, useState } from 'preact/hooks';
import { type Failure, failureOf } from './failure.ts';
import { Context, type PageContext } from './interface/context.ts';
import { leaveTo, navigate, useRoute } from './interface/navigation.ts';
import { ErrorNotice, Title } from './interface/parts.tsx';
import { LiveFeed, type LiveSocket } from './live/live-feed.ts';
import { Account } from './pages/account.tsx';
import { Alarms } from './pages/alarms.tsx';
import { Anchors } from './pages/anchors.tsx';
import { Device } from './pages/device.tsx';
import { Devices } from './pages/devices.tsx';
import { Overview } from './pages/overview.tsx';
import { RolloutPage } from './pages/rollout.tsx';
import { Rollouts } from './pages/rollouts.tsx';
import { SignIn } from './pages/sign-in.tsx';
import { pathWith, returnPath, type Route } from './routes.ts';
import { type EndReason, openClient, Session, type SessionParts, storedSession } from './session/session.ts';

/** The settings that the server sends. */
export interface Settings {
  /** Base URL of the API. */
  readonly api: string;
  /** The only origin from which browsers may call it. */
  readonly origin: string;
}

const reasons: Readonly<Record<EndReason, string>> = {
  'signed out': 'You have signed out.',
  expired: 'Your sign-in has ended. Sign in again to continue.',
};

/** The whole application. */
export function Application({ settings }: { readonly settings: Settings }) {
  const route = useRoute();
  const [session, setSession] = useState<Session>();
  const [isResuming, setResuming] = useState(true);
  const [reason, setReason] = useState('');
  const [failure, setFailure] = useState<Failure>();
  const parts = useMemo<SessionParts>(
    () => ({
      api: settings.api,
      storage: sessionStorage,
      openChannel: () => new BroadcastChannel('kellet.session'),
      now: Date.now,
    }),
    [settings],
  );
  const client = useMemo(() => openClient(parts), [parts]);

  const begin = async (made: Session): Promise<void> => {
    made.onEnd = (why) => {
      setSession(undefined);
      setReason(reasons[why]);
      const { pathname, search } = location;
      // Another reader of this screen begins at the overview.
      const next = why === 'expired' ? pathname + search : '';
      navigate(pathWith('/sign-in', { next: next === '/' ? '' : next }), { replace: true });
    };
    await made.identify();
    setReason('');
    setSession(made);
  };

  useEffect(() => {
    const stored = storedSession(sessionStorage);
    if (!stored) return setResuming(false);
    Session.resume(parts, stored)
      .then(begin)
      .catch((error: unknown) => {
        sessionStorage.removeItem('kellet.session');
        setFailure(failureOf(error));
      })
      .finally(() => setResuming(false));
  }, []);

  useEffect(() => {
    if (isResuming || session || route.page === 'sign-in') return;
    const { pathname, search } = location;
    navigate(pathWith('/sign-in', { next: pathname + search === '/' ? '' : pathname + search }), { replace: true });
  }, [isResuming, session, route.page]);

  const next = returnPath(route.query.get('next'));
  // After a sign-in, and for a reader who is signed in and opens this page again.
  useEffect(() => {
    if (session && route.page === 'sign-in') navigate(next, { replace: true });
  }, [session, route.page]);
  const onSignedIn = (tokens: Tokens, email: string): void => {
    begin(new Session(parts, tokens, email)).catch((error: unknown) => setFailure(failureOf(error)));
  };
  const onReturned = async (refreshToken: string): Promise<void> =>
    begin(await Session.resume(parts, { refreshToken, email: '' }));

  if (settings.origin !== location.origin) return <WrongOrigin origin={settings.origin} />;
  if (isResuming) return <p class="empty center">Loading…</p>;
  if (!session) {
    return (
      <>
        <Brand />
        <ErrorNotice failure={failure} />
        <SignIn
          api={settings.api}
          client={client}
          reason={reason}
          next={next}
          onSignedIn={onSignedIn}
          onReturned={onReturned}
        />
        <p class="center">
          <a href="/reference/">API reference</a>
        </p>
      </>
    );
  }
  return <Frame key={session.caller?.user_id} session={session} api={settings.api} route={route} />;
}

/** The API refuses calls from other origins, which would look like failures: this page names the right address instead. */
function WrongOrigin({ origin }: { readonly origin: string }) {
  return (
    <>
      <Brand />
      <main class="narrow">
        <Title text="Another address" />
        {origin === '' ? (
          <p>
            The API takes no calls from this page: the setting <code>KELLET_DASHBOARD_ORIGIN</code> must be{' '}
            <code>{location.origin}</code>.
          </p>
        ) : (
          <p>
            The dashboard is at <a href={origin}>{origin}</a>.
          </p>
        )}
      </main>
    </>
  );
}

const Brand = () => (
  <p class="brand center">
    <img src="/assets/icon.svg" alt="" width={28} height={28} /> Kellet
  </p>
);

const sections = [
  ['/', 'Overview', 'overview'],
  ['/devices', 'Devices', 'device'],
  ['/rollouts', 'Rollouts', 'rollout'],
  ['/alarms', 'Alarms', 'alarm'],
  ['/anchors', 'Anchors', 'anchor'],
] as const;

function Frame({ session, api, route }: { readonly session: Session; readonly api: string; readonly route: Route }) {
  const [message, setMessage] = useState('');
  const context = useMemo<PageContext>(() => {
    const live = new LiveFeed({
      api,
      accessToken: () => session.accessToken(),
      connect: (url) => new WebSocket(url) as LiveSocket,
      later: (run, milliseconds) => {
        const timer = setTimeout(run, milliseconds);
        return () => clearTimeout(timer);
      },
      random: Math.random,
    });
    return { session, client: session.client, live, say: setMessage };
  }, [session, api]);
  useEffect(() => () => context.live.close(), [context]);
  useEffect(() => {
    if (message === '') return undefined;
    const timer = setTimeout(() => setMessage(''), 6000);
    return () => clearTimeout(timer);
  }, [message]);
  return (
    <Context.Provider value={context}>
      <a class="skip" href="#content">
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href="/" aria-label="Kellet, overview">
          <img src="/assets/icon.svg" alt="" width={24} height={24} /> <span>Kellet</span>
        </a>
        <nav class="sections" aria-label="Sections">
          {sections.map(([path, text, page]) => (
            <a key={path} href={path} aria-current={route.page.startsWith(page) ? 'page' : undefined}>
              {text}
            </a>
          ))}
        </nav>
        <ProfileMenu session={session} />
      </header>
      <div id="content">
        <Page route={route} />
      </div>
      <div class="messages" role="status" aria-live="polite">
        {message !== '' && <p>{message}</p>}
      </div>
    </Context.Provider>
  );
}

function ProfileMenu({ session }: { readonly session: Session }) {
  const name = session.email || session.caller?.tenant_id || 'account';
  const route = useRoute();
  const [isOpen, setOpen] = useState(false);
  useEffect(() => setOpen(false), [route.page, route.id]);
  return (
    <details class="menu" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary aria-label={`Profile: ${name}`}>{name.charAt(0).toUpperCase()}</summary>
      <div class="items">
        <p>
          {session.email}
          <br />
          <small>{session.caller?.tenant_id}</small>
        </p>
        <a href="/account">Account and sessions</a>
        <a href="/reference/">API reference</a>
        <button type="button" onClick={() => void session.signOut().then(leaveTo, () => undefined)}>
          Sign out
        </button>
      </div>
    </details>
  );
}

function Page({ route }: { readonly route: Route }) {
  const { page, id, query } = route;
  switch (page) {
    case 'overview':
      return <Overview />;
    case 'devices':
      return <Devices query={query} />;
    case 'device':
      return <Device key={id} id={id} query={query} />;
    case 'rollouts':
      return <Rollouts query={query} />;
    case 'rollout':
      return <RolloutPage key={id} id={id} />;
    case 'alarms':
      return <Alarms query={query} />;
    case 'anchors':
      return <Anchors query={query} />;
    case 'account':
      return <Account />;
    case 'sign-in':
      return null;
    case 'unknown':
      return (
        <main>
          <Title text="Not found" />
          <p>
            There is no such page. <a href="/">Overview</a>
          </p>
        </main>
      );
  }
}
