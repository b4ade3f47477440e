"""Commands and states of event-sourced entities over HTTP: `viewtail serve`."""
