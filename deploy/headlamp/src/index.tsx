// A thin view of kai-ledger in Headlamp: a pod's "why" on its page, and the groups that wait.
import {
  ApiProxy,
  ConfigStore,
  DetailsViewSectionProps,
  registerDetailsViewSection,
  registerPluginSettings,
  registerRoute,
  registerSidebarEntry,
} from '@kinvolk/headlamp-plugin/lib';
import { SectionBox, SimpleTable } from '@kinvolk/headlamp-plugin/lib/CommonComponents';
import { TextField, Typography } from '@mui/material';
import React from 'react';
import { Ask, GroupRow, Listing, Place, problem, reasonLines, USUAL_PLACE, waitingGroups, why, Why } from './api';

const NAME = 'kai-ledger-headlamp';
const store = new ConfigStore<Partial<Place>>(NAME);

// An answer 401 is kai-ledger's, and no reason to log out of the cluster.
const ask: Ask = (path, options) => ApiProxy.request(path, options, false);

function place(): Place {
  return { ...USUAL_PLACE, ...store.get() };
}

/** What was asked for, or why it is not there, as soon as one of them is known. */
function useAnswer<T>(question: () => Promise<T>, about: string): { answer?: T; failure?: string } {
  const [state, setState] = React.useState<{ answer?: T; failure?: string }>({});
  React.useEffect(() => {
    let current = true;
    setState({});
    question().then(
      answer => current && setState({ answer }),
      error => current && setState({ failure: problem(error) })
    );
    return () => {
      current = false;
    };
  }, [about]);
  return state;
}

function Lines({ title, lines }: { title: string; lines: string[] }) {
  if (!lines.length) {
    return null;
  }
  return (
    <>
      <Typography variant="subtitle2">{title}</Typography>
      <ul>
        {lines.map(line => (
          <li key={line}>{line}</li>
        ))}
      </ul>
    </>
  );
}

function WhyOfPod({ namespace, name, uid }: { namespace: string; name: string; uid: string }) {
  const { answer, failure } = useAnswer<Why>(() => why(ask, place(), namespace, name), uid);
  return (
    <SectionBox title="kai-ledger: why">
      {failure && <Typography color="text.secondary">{failure}</Typography>}
      {answer && (
        <>
          <Typography>
            {answer.verdict}
            {answer.since && `, since ${answer.since}`} (log position {answer.position})
          </Typography>
          <Lines title="Reasons" lines={reasonLines(answer.reasons)} />
          <Lines title="Would start if" lines={reasonLines(answer.schedulableIf)} />
          <Lines title="Notes" lines={answer.notes} />
        </>
      )}
    </SectionBox>
  );
}

function Waiting() {
  const { answer, failure } = useAnswer<Listing>(() => waitingGroups(ask, place()), 'groups');
  return (
    <SectionBox title="Groups that wait">
      {failure && <Typography color="text.secondary">{failure}</Typography>}
      {answer && (
        <SimpleTable
          data={answer.items}
          emptyMessage="Nothing waits"
          columns={[
            { label: 'Group', getter: (row: GroupRow) => `${row.namespace}/${row.name}` },
            { label: 'Kind', getter: (row: GroupRow) => row.kind },
            { label: 'Queue', getter: (row: GroupRow) => row.queue },
            { label: 'Waiting', getter: (row: GroupRow) => row.waiting },
            { label: 'Running', getter: (row: GroupRow) => row.running },
            { label: 'Minimum', getter: (row: GroupRow) => row.minimum },
            { label: 'Why', getter: (row: GroupRow) => row.message },
          ]}
        />
      )}
    </SectionBox>
  );
}

function Settings() {
  const [current, setCurrent] = React.useState<Place>(place());
  const field = (name: keyof Place, label: string, type = 'text') => (
    <TextField
      fullWidth
      margin="dense"
      label={label}
      type={type}
      value={current[name]}
      onChange={event => {
        const value = name === 'port' ? Number(event.target.value) : event.target.value;
        const changed = { ...current, [name]: value };
        setCurrent(changed);
        store.set(changed);
      }}
    />
  );
  return (
    <>
      {field('cluster', "The cluster, as kai-ledger's log calls it")}
      {field('namespace', "Namespace of kai-ledger's API")}
      {field('service', 'Its service')}
      {field('port', 'Its port', 'number')}
      {field('key', 'Key of the API (kept in this browser)', 'password')}
    </>
  );
}

registerDetailsViewSection(({ resource }: DetailsViewSectionProps) => {
  if (resource?.kind !== 'Pod') {
    return null;
  }
  const { namespace = '', name, uid } = resource.metadata;
  return <WhyOfPod namespace={namespace} name={name} uid={uid} />;
});

registerSidebarEntry({
  parent: 'workloads',
  name: 'kai-ledger-waiting',
  label: 'Waiting groups',
  url: '/kai-ledger/waiting',
});

registerRoute({
  path: '/kai-ledger/waiting',
  sidebar: 'kai-ledger-waiting',
  name: 'kai-ledger-waiting',
  exact: true,
  component: () => <Waiting />,
});

registerPluginSettings(NAME, Settings, false);
