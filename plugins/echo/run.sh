#!/bin/sh
# The echo plugin: returns the message or payload of the request. See README.md.
. "${0%/*}/ductile.sh" && ductile_read

command=$(json_text command)
mode=$(json_text config.mode)
case ${mode:=ok} in
    ok | error | hang | protocol_error) ;;
    null) mode=ok ;;
    *) ductile_error "mode must be one of ok, error, hang, protocol_error, not '$mode'" false; exit ;;
esac

if [ "$command" = health ]; then
    ductile_ok "healthy (mode $mode)"
    exit
fi
case $mode in
    error) ductile_error "echo was configured to fail"; exit ;;
    protocol_error) echo "this is not JSON"; exit ;;
    hang)
        echo "configured to hang (mode: hang)" >&2
        exec sleep 2147483647 ;;
esac

if [ "$command" = handle ]; then payload=$(json_get event.payload); else payload=$(json_get payload); fi
case $payload in "{"*) ;; *) payload="{}" ;; esac
if ! message=$(json_get message "$payload"); then
    message=$(json_get config.message)
    case $message in "" | null | '""') message='"hello from echo"' ;; esac
fi

echoed=$(json_set command "\"$command\"" "$(json_set message "$message" "$payload")")
ductile_event "echo.$command" "$echoed"
ductile_state "{\"last_run\":\"$(date -u +%Y-%m-%dT%H:%M:%SZ)\"}"
ductile_log info "echoed job $(json_text job_id)"
ductile_ok "echo: $(json_text message "$echoed")"
