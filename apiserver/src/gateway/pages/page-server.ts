// The dashboard's port: static pages, which are the dashboard and the API reference. Everything is served by this process,
// which the content security policies enforce.
import express, { type NextFunction, type Request, type Response } from 'express';
import { HttpServer } from '../http/http-server.ts';
import { dashboardRoutes, findDashboard } from './dashboard-pages.ts';
import { referenceRoutes } from './reference-page.ts';

/** Settings of the static pages. */
export interface PageOptions {
  /** KELLET_PUBLIC_URL. */
  readonly publicUrl: string;
  /** KELLET_DASHBOARD_ORIGIN. */
  readonly dashboardOrigin: string;
  /** How the port of the REST API is reached; http by default. */
  readonly scheme?: 'http' | 'https';
  /** The port of the REST API, read for each page. */
  readonly restPort: () => number;
  /** The folder of the built dashboard, instead of the one that belongs to this program. */
  readonly dashboardFolder?: string;
}

/**
 * Returns the URL of the API for a page requested under `host` (the Host header): `publicUrl` if configured, else the
 * REST port of that host. An invalid Host header counts as localhost.
 */
export function apiUrl(
  publicUrl: string,
  host: string | undefined,
  restPort: number,
  scheme: 'http' | 'https' = 'http',
): string {
  if (publicUrl !== '') return publicUrl.replace(/\/$/, '');
  const name = /^([a-z0-9.-]+|\[[0-9a-f:]+\])(:\d+)?$/i.exec(host ?? '')?.[1] ?? 'localhost';
  return `${scheme}://${name}:${restPort}`;
}

/** Creates the server of the static pages; the caller starts listening. */
export function createPageServer(options: PageOptions): HttpServer {
  const apiOf = ({ headers }: Request): string =>
    apiUrl(options.publicUrl, headers.host, options.restPort(), options.scheme);
  const app = express();
  app.disable('x-powered-by');
  app.enable('strict routing');
  app.enable('case sensitive routing');
  app.use((_request, response, next) => {
    response.set({
      'x-content-type-options': 'nosniff',
      'referrer-policy': 'no-referrer',
      'cross-origin-opener-policy': 'same-origin',
      // Browsers revalidate their copy. The names of the files do not depend on their content, so that a page fits
      // whichever of several instances its files come from while they are upgraded.
      'cache-control': 'no-cache',
    });
    next();
  });
  app.use(referenceRoutes(apiOf));
  app.use(dashboardRoutes(findDashboard(options.dashboardFolder), options.dashboardOrigin, apiOf));
  app.use((_request, response) => void response.status(404).type('txt').send('not found\n'));
  // Express recognises an error handler by its four parameters; its default one would reveal where the error occurred.
  app.use((error: { status?: number }, _request: Request, response: Response, _next: NextFunction) => {
    if (response.headersSent) return void response.destroy();
    response
      .status(error.status ?? 500)
      .type('txt')
      .send('not available\n');
  });
  return new HttpServer(app);
}
