// The start: asks the server where the API is, then shows the application.
import './style.css';
import { render } from 'preact';
import { Application, type Settings } from './application.tsx';
import { followLinks } from './interface/navigation.ts';

const place = document.getElementById('application')!;
place.textContent = '';

try {
  const response = await fetch('/settings.json');
  const settings = (await response.json()) as Settings;
  followLinks();
  render(<Application settings={settings} />, place);
} catch {
  place.textContent = 'The dashboard could not be loaded. Check the network, then reload the page.';
}
