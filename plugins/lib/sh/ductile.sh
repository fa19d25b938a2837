# The plugin protocol of Ductile for POSIX shells. Requires sh and awk. Copy it next to your entrypoint:
#     . "${0%/*}/ductile.sh" && ductile_read
#
#   json_get PATH [JSON]         print the value at PATH (`config.name`) as JSON; status 1 if it is absent
#   json_text PATH [JSON]        the same, but a string is decoded to plain text
#   json_set KEY VALUE JSON      print the object JSON with the member KEY set to the JSON value VALUE
#   json_quote TEXT              print TEXT (UTF-8) as a JSON string
#   ductile_event TYPE PAYLOAD [DEDUPE_KEY]    add an event to the response
#   ductile_state OBJECT         set the state updates of the response
#   ductile_log LEVEL TEXT       add a log line to the response
#   ductile_ok RESULT            print the response, status ok
#   ductile_error TEXT [false]   print the response, status error; `false`: do not retry
#
# Limits: no access to list items or to keys that contain escapes, and no validation of JSON (requests are valid).
# U+0000 becomes U+FFFD, and line breaks at the end of a text are lost. If you need more, use another language.

ductile_read() {
    DUCTILE_REQUEST=$(cat)
    ductile_events= ductile_logs= ductile_new_state=null
    [ "$(json_get protocol)" = 2 ] || { echo "unsupported protocol; this plugin supports protocol 2" >&2; exit 78; }
}
json_get() { printf '%s\n' "${2-$DUCTILE_REQUEST}" | ductile_awk get "$1"; }
json_text() { printf '%s\n' "${2-$DUCTILE_REQUEST}" | ductile_awk text "$1"; }
json_quote() { printf '%s\n' "$1" | ductile_awk quote; }
json_set() { printf '{%s"%s":%s}\n' "$(printf '%s\n' "$3" | ductile_awk without "$1")" "$1" "$2"; }

ductile_event() {
    ductile_events="$ductile_events${ductile_events:+,}{\"type\":$(json_quote "$1"),\"payload\":$2"
    ductile_events="$ductile_events${3:+,\"dedupe_key\":$(json_quote "$3")}}"
}
ductile_state() { ductile_new_state=$1; }
ductile_log() { ductile_logs="$ductile_logs${ductile_logs:+,}{\"level\":\"$1\",\"message\":$(json_quote "$2")}"; }
ductile_ok() { ductile_respond "\"status\":\"ok\",\"result\":$(json_quote "$1")"; }
ductile_error() { ductile_respond "\"status\":\"error\",\"error\":$(json_quote "$1"),\"retry\":${2:-true}"; }
ductile_respond() {
    printf '{%s,"events":[%s],"state_updates":%s,"logs":[%s]}\n' \
        "$1" "$ductile_events" "$ductile_new_state" "$ductile_logs"
}

ductile_awk() { # MODE KEY; JSON on stdin. Works on bytes, so that the locale has no effect.
    LC_ALL=C DUCTILE_MODE=$1 DUCTILE_KEY=${2-} awk '
    # Fill `keys` and `vals` with the members of an object as raw JSON, and return their number.
    # Splitting at quotes limits the slow byte loop to the text between strings.
    function members(text,    part, n, i, j, c, size, base, at, start, depth, count) {
        if (text !~ /^[ \t\r\n]*[{]/) return 0
        for (n = split(text, part, "\""); ++i <= n;) {
            size = length(part[i])
            for (j = 1; j <= size; j++) {
                c = substr(part[i], j, 1); at = base + j
                if (index("}]", c)) depth--
                if (depth == 1 && c == ":") keys[++count] = trim(substr(text, start, at - start))
                else if (c == "," && depth == 1 || c == "}" && !depth)
                    vals[count] = trim(substr(text, start, at - start))
                else if (!index("{[", c) || ++depth > 1) continue
                start = at + 1
            }
            base += size + 1
            # After an odd number of backslashes the quote was escaped, so the string continues.
            do base += length(part[++i]) + 1; while (i < n && match(part[i], /\\+$/) && RLENGTH % 2)
        }
        return count + 0
    }
    function trim(text) { gsub(/^[ \t\r\n]+|[ \t\r\n]+$/, "", text); return text }
    function decode(text,    out, c, n, low) {
        text = substr(text, 2, length(text) - 2)
        while (match(text, /\\./)) {
            out = out substr(text, 1, RSTART - 1); c = substr(text, RSTART + 1, 1); text = substr(text, RSTART + 2)
            if (c != "u") { n = index("bfnrt", c); out = out (n ? substr("\b\f\n\r\t", n, 1) : c); continue }
            n = hex(text); text = substr(text, 5); low = text ~ /^\\u/ ? hex(substr(text, 3)) : 0
            if (n >= 55296 && n < 56320 && low >= 56320 && low < 57344) {
                n = (n - 55296) * 1024 + low + 9216; text = substr(text, 7)
            }
            out = out utf8(n && (n < 55296 || n > 57343) ? n : 65533)
        }
        return out text
    }
    function hex(digits,    i, n) {
        while (++i <= 4) n = n * 16 + index("123456789abcdef", tolower(substr(digits, i, 1)))
        return n
    }
    function utf8(n,    tail, max) {
        if (n < 128) return sprintf("%c", n)
        for (max = 64; n >= max || max == 64; max /= 2) { tail = sprintf("%c", 128 + n % 64) tail; n = int(n / 64) }
        return sprintf("%c", 256 - 2 * max + n) tail
    }
    { text = text (NR > 1 ? "\n" : "") $0 }
    END {
        mode = ENVIRON["DUCTILE_MODE"]; key = ENVIRON["DUCTILE_KEY"]
        if (mode == "quote") {
            gsub(/[\\"]/, "\\\\&", text)
            while (++i < 32) gsub(sprintf("%c", i), sprintf("\\u%04x", i), text)
            print "\"" text "\""
        } else if (mode == "without") {
            for (n = members(text); ++i <= n;) if (keys[i] != "\"" key "\"") printf "%s:%s,", keys[i], vals[i]
        } else {
            for (depth = split(key, path, "."); ++i <= depth; text = n ? vals[n] : "")
                for (n = members(text); n && keys[n] != "\"" path[i] "\"";) n--
            if (text == "") exit 1
            print mode == "text" && text ~ /^"/ ? decode(text) : text
        }
    }'
}
