# ductile.sh: read a request and answer it from a POSIX shell. Needs sh and awk. Copy it beside your entrypoint:
#     . "${0%/*}/ductile.sh" && ductile_read
#
#   json_get PATH [JSON]         the value at PATH (`config.name`) as JSON text; nothing and status 1 if absent
#   json_text PATH [JSON]        the same as plain text: a string is decoded, anything else stays JSON
#   json_set KEY VALUE JSON      the object JSON, its member KEY set to the JSON text VALUE
#   json_quote TEXT              TEXT (UTF-8) as a JSON string
#   ductile_event TYPE PAYLOAD [DEDUPE_KEY]    ductile_state OBJECT    ductile_log LEVEL TEXT
#   ductile_ok RESULT            the answer, with everything noted by the three above
#   ductile_error TEXT [false]   the failure; `false`: trying again is of no use
#
# What it cannot do: look into lists, find keys that are written with escapes, check that the request is valid JSON
# (Ductile did), keep U+0000 (it becomes U+FFFD) or line breaks at the end of a text. For more, use another language.

ductile_read() {
    DUCTILE_REQUEST=$(cat)
    ductile_events= ductile_logs= ductile_kept=null
    [ "$(json_get protocol)" = 2 ] || { echo "this plugin speaks protocol 2 only" >&2; exit 78; }
}
json_get() { printf '%s\n' "${2-$DUCTILE_REQUEST}" | ductile_awk get "$1"; }
json_text() { printf '%s\n' "${2-$DUCTILE_REQUEST}" | ductile_awk text "$1"; }
json_quote() { printf '%s\n' "$1" | ductile_awk quote; }
json_set() { printf '{%s"%s":%s}\n' "$(printf '%s\n' "$3" | ductile_awk without "$1")" "$1" "$2"; }

ductile_event() {
    ductile_events="$ductile_events${ductile_events:+,}{\"type\":$(json_quote "$1"),\"payload\":$2"
    ductile_events="$ductile_events${3:+,\"dedupe_key\":$(json_quote "$3")}}"
}
ductile_state() { ductile_kept=$1; }
ductile_log() { ductile_logs="$ductile_logs${ductile_logs:+,}{\"level\":\"$1\",\"message\":$(json_quote "$2")}"; }
ductile_ok() { ductile_answer "\"status\":\"ok\",\"result\":$(json_quote "$1")"; }
ductile_error() { ductile_answer "\"status\":\"error\",\"error\":$(json_quote "$1"),\"retry\":${2:-true}"; }
ductile_answer() {
    printf '{%s,"events":[%s],"state_updates":%s,"logs":[%s]}\n' "$1" "$ductile_events" "$ductile_kept" "$ductile_logs"
}

ductile_awk() { # MODE KEY, JSON on stdin. Bytes, not characters: the same in every locale.
    LC_ALL=C DUCTILE_MODE=$1 DUCTILE_KEY=${2-} awk '
    # Keys and values of an object as they are written; returns how many there are.
    # Cut at the quotes, so that only what is between strings is looked at byte by byte.
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
            # A piece that ends in an odd number of backslashes was cut at an escaped quote.
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
    function utf8(n,    tail, room) {
        if (n < 128) return sprintf("%c", n)
        for (room = 64; n >= room || room == 64; room /= 2) { tail = sprintf("%c", 128 + n % 64) tail; n = int(n / 64) }
        return sprintf("%c", 256 - 2 * room + n) tail
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
