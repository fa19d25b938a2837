#!/bin/sh
# A minimal plugin in a POSIX shell. See README.md.
. "${0%/*}/ductile.sh" && ductile_read

# Set `value` to a setting as JSON text, or to the default. Exits with 78 if it is not text.
setting() {
    value=$(json_get "config.$1") || value=null
    case $value in
        null) value=$2 ;;
        \"*[!\ ]*\") ;;
        *) ductile_error "$1 must be non-blank text, not $value" false; exit 78 ;;
    esac
}

setting name '"World"'; name=$value
setting greeting '"Hello"'
# Both are JSON strings, so they can be joined without decoding.
message="${value%\"}, ${name#\"}"
message="${message%\"}!\""

case $(json_text command) in
    poll)
        ductile_event sh-greet.greeted "{\"message\":$message,\"name\":$name}"
        ductile_state "{\"last_greeting\":$message}"
        ductile_ok "$(json_text m "{\"m\":$message}")"
        ;;
    health) ductile_ok "healthy (greeting: $(json_text m "{\"m\":$message}"))" ;;
    *) ductile_error "unknown command $(json_get command)" false ;;
esac
