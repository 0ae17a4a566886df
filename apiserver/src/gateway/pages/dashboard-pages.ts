// The dashboard's files, which `npm run build --workspace dashboard` made. They are read once and served from memory, so
// no request reaches the file system.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { type Request, type Response, Router } from 'express';

interface StaticFile {
  readonly type: string;
  readonly content: Buffer;
  readonly compressed: Buffer;
}

/** The built dashboard. */
export interface DashboardFiles {
  readonly index: StaticFile;
  /** By name, such as `application.js`. */
  readonly assets: ReadonlyMap<string, StaticFile>;
  /** First segments of the paths of pages. */
  readonly pages: ReadonlySet<string>;
}

const types: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
};

const notBuilt = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Kellet</title>
<h1>Kellet</h1>
<p>The dashboard is not built: <code>npm run build --workspace dashboard</code>, then start the server again.</p>
<p><a href="/reference/">API reference</a></p>
</html>
`;

/** Policy of the dashboard: its own files, requests to the API and its /ws, and no markup made from text. */
export function dashboardPolicy(api: string): string {
  const { origin } = new URL(api);
  return [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    `connect-src 'self' ${origin} ${origin.replace(/^http/, 'ws')}`,
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join('; ');
}

/** Reads the files of a built dashboard, by default those of this program. Returns undefined if there are none. */
export function findDashboard(
  folder = join(dirname(fileURLToPath(import.meta.resolve('@kellet/dashboard/package.json'))), 'dist'),
): DashboardFiles | undefined {
  if (!existsSync(join(folder, 'pages.json'))) return undefined;
  const read = (path: string): StaticFile => {
    const content = readFileSync(join(folder, path));
    return { type: types[extname(path)] ?? 'application/octet-stream', content, compressed: gzipSync(content) };
  };
  const names = readdirSync(join(folder, 'assets'));
  return {
    index: read('index.html'),
    assets: new Map(names.map((name) => [name, read(`assets/${name}`)])),
    pages: new Set(JSON.parse(readFileSync(join(folder, 'pages.json'), 'utf8')) as string[]),
  };
}

/**
 * Serves the dashboard. All its pages are one file, so that links into it work; other paths are left to the next
 * handler. `apiOf` returns the URL of the API for a request.
 */
export function dashboardRoutes(
  files: DashboardFiles | undefined,
  dashboardOrigin: string,
  apiOf: (request: Request) => string,
): Router {
  const routes = Router({ strict: true, caseSensitive: true });
  routes.use((request, response, next) => {
    response.set('content-security-policy', dashboardPolicy(apiOf(request)));
    next();
  });
  if (!files) {
    routes.get('/', (_request, response) => void response.send(notBuilt));
    return routes;
  }
  const send = (request: Request, response: Response, file: StaticFile): void => {
    const isCompressed = request.acceptsEncodings('gzip', 'identity') === 'gzip';
    response.vary('accept-encoding').set('content-type', file.type);
    if (isCompressed) response.set('content-encoding', 'gzip');
    response.send(isCompressed ? file.compressed : file.content);
  };
  routes.get('/settings.json', (request, response) => {
    response.json({ api: apiOf(request), origin: dashboardOrigin });
  });
  routes.get('/assets/:name', (request, response, next) => {
    const file = files.assets.get(request.params.name);
    if (!file) return next();
    send(request, response, file);
  });
  routes.get(/.*/, (request, response, next) => {
    const [, first = ''] = request.path.split('/');
    if (!files.pages.has(first)) return next();
    send(request, response, files.index);
  });
  return routes;
}
