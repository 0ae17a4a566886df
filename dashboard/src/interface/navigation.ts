// Moving between pages without loading the application again.
import { useEffect, useState } from 'preact/hooks';
import { type Route, routeOf } from '../routes.ts';

const moved = new EventTarget();

/** Leaves the dashboard for a URL that the API has returned; empty: stays. */
export function leaveTo(url: string): void {
  if (url !== '') location.assign(url);
}

const here = (): string => location.pathname + location.search;

/** Goes to a path of the application. `replace` keeps the current page out of the history. */
export function navigate(path: string, { replace = false } = {}): void {
  if (replace) history.replaceState(null, '', path);
  else history.pushState(null, '', path);
  moved.dispatchEvent(new Event('move'));
}

/** Makes links within the application move without loading it again. */
export function followLinks(): void {
  addEventListener('popstate', () => moved.dispatchEvent(new Event('move')));
  document.addEventListener('click', (event) => {
    const link = (event.target as Element).closest?.('a');
    if (!link || event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (link.origin !== location.origin || link.target || link.download || link.pathname.startsWith('/reference'))
      return;
    event.preventDefault();
    if (link.pathname + link.search !== here()) navigate(link.pathname + link.search);
    scrollTo(0, 0);
  });
}

/** Returns the current page, and renders again when it changes. */
export function useRoute(): Route {
  const [path, setPath] = useState(here);
  useEffect(() => {
    const update = (): void => setPath(here());
    moved.addEventListener('move', update);
    return () => moved.removeEventListener('move', update);
  }, []);
  return routeOf(path);
}
