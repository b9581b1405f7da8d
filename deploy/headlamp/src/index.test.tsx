// The plugin in Headlamp's own frontend, without a browser: what it registers, and what its parts show of answers. The
// answers are recorded ones, or those of a running API: KAI_API=http://HOST:PORT KAI_KEY=… KAI_POD=NAMESPACE/NAME.
import { ConfigStore } from '@kinvolk/headlamp-plugin/lib';
import { lightTheme } from '@kinvolk/headlamp-plugin/lib/components/App/defaultAppThemes';
import { createMuiTheme } from '@kinvolk/headlamp-plugin/lib/lib/themes';
import store from '@kinvolk/headlamp-plugin/lib/redux/stores/store';
import { ThemeProvider } from '@mui/material';
import { cleanup, configure, render, screen } from '@testing-library/react';
import React from 'react';
import { Provider } from 'react-redux';
import { MemoryRouter } from 'react-router-dom';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import recorded from './answers.json';
import './index';

const LIVE = process.env.KAI_API ?? '';
const [NAMESPACE, POD] = (process.env.KAI_POD ?? 'default/too-large').split('/');
const real = globalThis.fetch;
let asked: string[] = [];
let refused = 0;

/** What Headlamp's server and an API server do with a request: they lead it to the service. */
async function proxy(input: RequestInfo | URL, options?: RequestInit): Promise<Response> {
  const path = String(input).split('/proxy')[1];
  asked.push(String(input));
  if (refused) {
    return new Response(JSON.stringify({ message: 'refused' }), { status: refused });
  }
  if (LIVE) {
    const cluster = process.env.KAI_CLUSTER ?? 'kai';
    return real(LIVE + path.replace('/clusters/default/', `/clusters/${cluster}/`), { headers: options?.headers });
  }
  expect(new Headers(options?.headers).get('Accept')).toBe('application/json');
  return new Response(JSON.stringify(path.includes('/groups') ? recorded.groups : recorded.why));
}

function show(part: React.ReactNode) {
  render(
    <Provider store={store}>
      <ThemeProvider theme={createMuiTheme(lightTheme)}>
        <MemoryRouter>{part}</MemoryRouter>
      </ThemeProvider>
    </Provider>
  );
}

/** What the plugin shows on the page of an object. */
function sections(kind: string): React.ReactNode {
  const resource = { kind, metadata: { namespace: NAMESPACE, name: POD, uid: 'u' } };
  const registered = store.getState().detailsViewSection.detailsViewSections;
  return registered.map(({ id, section: Section }: any) => <Section key={id} resource={resource} />);
}

// A running API may be busy, and Headlamp as a whole is loaded.
configure({ asyncUtilTimeout: 30_000 });
vi.setConfig({ testTimeout: 60_000 });

beforeEach(() => {
  asked = [];
  refused = 0;
  vi.stubGlobal('fetch', proxy);
  new ConfigStore<{ key: string }>('kai-ledger-headlamp').set({ key: process.env.KAI_KEY ?? '' });
});

afterEach(cleanup);

describe('the page of a pod', () => {
  it('says why the pod waits and what would make it start', async () => {
    show(sections('Pod'));
    expect(await screen.findByText('kai-ledger: why')).toBeTruthy();
    expect(await screen.findByText(/^pending.*log position \d+/)).toBeTruthy();
    expect(screen.getByText('Reasons')).toBeTruthy();
    expect(screen.getByText('Would start if')).toBeTruthy();
    expect(screen.getAllByRole('listitem').length).toBeGreaterThan(1);
    expect(asked[0]).toContain(`/services/kai-api:8080/proxy/v1/clusters/default/pods/${NAMESPACE}/${POD}/why`);
  });

  it('says what to do where the API asks for a key', async () => {
    refused = 401;
    show(sections('Pod'));
    expect(await screen.findByText(/asks for a key: set one in the settings/)).toBeTruthy();
  });

  it('has nothing of the plugin for other kinds', () => {
    show(sections('Node'));
    expect(screen.queryByText('kai-ledger: why')).toBeNull();
    expect(asked).toEqual([]);
  });
});

describe('the list of groups that wait', () => {
  it('has a place in the sidebar, and a row for each group', async () => {
    const state = store.getState();
    expect(state.sidebar.entries['kai-ledger-waiting'].url).toBe('/kai-ledger/waiting');
    const List = state.routes.routes['/kai-ledger/waiting'].component as React.ComponentType;
    show(<List />);
    expect(await screen.findByText('Groups that wait')).toBeTruthy();
    expect(await screen.findByRole('table')).toBeTruthy();
    if (!LIVE) {
      const [first] = recorded.groups.items;
      expect(screen.getByText(`${first.namespace}/${first.name}`)).toBeTruthy();
      expect(screen.getByText(first.message)).toBeTruthy();
    }
  });
});
