export CREWAI_DISABLE_TELEMETRY=true CREWAI_TRACING_ENABLED=false OTEL_SDK_DISABLED=true PYTHONPATH=/tmp/wt/pa16/src:/tmp/wt/pa16 PYTHONDONTWRITEBYTECODE=1 CREWAI_STORAGE_DIR=/tmp/wt/pa16/build/crewai
cd /tmp/wt/pa16; exec nice -n 10 /tmp/ci/.venv-crewai/bin/python "$@"
