#!/bin/sh
# The smallest complete plugin in a POSIX shell. See README.md.
. "${0%/*}/ductile.sh" && ductile_read

# A setting as JSON text: what the operator wrote, else what is given. Anything but text ends the plugin with 78.
setting() {
    value=$(json_get "config.$1") || value=null
    case $value in
        null) value=$2 ;;
        \"*[!\ ]*\") ;;
        *) ductile_error "$1 must be text and not blank, not $value" false; exit 78 ;;
    esac
}

setting name '"World"'; name=$value
setting greeting '"Hello"'
# Both are JSON strings already: joined as they are written, nothing has to be decoded and quoted again.
message="${value%\"}, ${name#\"}"
message="${message%\"}!\""

case $(json_text command) in
    poll)
        ductile_event sh-greet.greeted "{\"message\":$message,\"name\":$name}"
        ductile_state "{\"last_greeting\":$message}"
        ductile_ok "$(json_text m "{\"m\":$message}")"
        ;;
    health) ductile_ok "would say: $(json_text m "{\"m\":$message}")" ;;
    *) ductile_error "there is no command $(json_get command)" false ;;
esac
